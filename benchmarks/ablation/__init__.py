"""The study of what makes imputing help (docs/study.md): problems, arms tuned alike, and settings one by one."""



