"""Searches that nobody waits for any more end."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from factorcell.completion.compiled import search
from factorcell.completion.search import SearchRequest, Stop
from factorcell.data.vocabulary import END
from tests.completion.test_compiled import found_in, packed_in, unlikely_to_end


def test_another_thread_ends_a_search() -> None:
    """One that would go on for very long, and of those beside it none."""
    run, stop = unlikely_to_end(), Stop()
    with torch.no_grad():
        run.model.output.bias[END] -= 10
    compiled, typed = packed_in(run, "a")
    wanted = [SearchRequest(typed, 10, 12, stop=stop), SearchRequest(typed, 10, 1)]
    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(search, compiled.packed, wanted, rows=10**6, waiting=10**6)
        time.sleep(0.02)
        stop.set()
        stopped, whole = searching.result()
    assert stopped.cut
    assert stopped.rows < 10**6
    assert whole == found_in(run, "a", 10, 1)
    assert search(compiled.packed, wanted[:1], seconds=1e6)[0].rows == 0, "it stays stopped"


def test_a_stop_calls_while_it_is_asked_to() -> None:
    """From any thread; at once where it is set already; nothing that has ended by then."""
    stop, called = Stop(), list[str]()
    with stop.calling(lambda: called.append("ended")):
        pass
    with stop.calling(lambda: called.append("first")):
        thread = threading.Thread(target=stop.set)
        thread.start()
        thread.join()
    with stop.calling(lambda: called.append("second")):
        assert called == ["first", "second"]
    assert stop.is_set
