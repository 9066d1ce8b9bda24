"""The study of when imputing helps (docs/study.md): problems, tuned arms, single settings."""
