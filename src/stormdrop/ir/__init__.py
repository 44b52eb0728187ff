"""What a kernel computes: functions as stages of expressions, workloads, the roles of axes, the NumPy reference."""
