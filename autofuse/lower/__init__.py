"""Prepared module → operators that the schedules know: blocked layouts, packed weights, one `call_tir` an operator."""
