"""Work that django-q runs: schedules, jobs of the data pipeline, and mails."""
