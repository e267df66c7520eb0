"""One scrub from its start to its receipt, all running jobs, and the locks and slots for which they wait."""
