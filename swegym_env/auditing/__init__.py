"""Auditing of tasks: do a task's tests accept patches that are wrong, or refuse patches that are right?"""
