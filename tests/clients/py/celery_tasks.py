# SPDX-License-Identifier: BSD-2-Clause
"""Celery with a broker and results behind one server: celery_tasks.py PORT."""
import sys
import threading

from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker

URL = f"redis://127.0.0.1:{sys.argv[1]}/"
app = Celery("tasks", broker=URL + "0", backend=URL + "1")
app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
tried = threading.Event()


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=1, default_retry_delay=0.1)
def second_time(self):
    if not tried.is_set():
        tried.set()
        raise self.retry()
    return "done"


@app.task
def fails():
    raise ValueError("as it should")


with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False):
    assert group(add.s(i, i) for i in range(100))().get(timeout=30) == [2 * i for i in range(100)]
    assert chain(add.s(1, 2), add.s(3), add.s(4))().get(timeout=30) == 10
    assert chord(add.s(i, 1) for i in range(20))(total.s()).get(timeout=30) == 210
    assert second_time.delay().get(timeout=30) == "done"
    assert add.apply_async((1, 1), countdown=0.2).get(timeout=30) == 2
    try:
        fails.delay().get(timeout=30)
    except ValueError as error:
        assert str(error) == "as it should"
    else:
        raise AssertionError("it did not fail")
