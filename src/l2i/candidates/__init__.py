"""Models of a table to choose from, and their choice by cross-validation."""
