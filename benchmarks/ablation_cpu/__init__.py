"""When does imputing help? Small problems, tuned arms, and single settings of L2I."""
