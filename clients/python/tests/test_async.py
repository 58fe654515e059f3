"""Following by `async for`: cancellation, dropped generators, loops that close."""

import asyncio
import gc
import json

import pytest
import towpath
from conftest import follow_threads
from test_follow import ids, put


def test_it_goes_on_beside_other_tasks(feed, tmp_path):
    state = tmp_path / "state"
    put(feed, "a", "b")

    async def main():
        seen, ticks = [], []

        async def tick():
            while True:
                ticks.append(len(seen))
                await asyncio.sleep(0.02)

        ticking = asyncio.create_task(tick())
        later = asyncio.get_running_loop().call_later(0.5, lambda: asyncio.get_running_loop().run_in_executor(None, put, feed, "c"))
        async for change in towpath.follow(feed.url, state=state):
            seen.append(change.id)
            if change.id == "c":
                break
        ticking.cancel()
        assert ticks.count(2) > 5, "the loop ran while nothing came"
        return seen

    assert asyncio.run(main()) == ["a", "b", "c"]
    assert ids(towpath.follow(feed.url, state=state, once=True)) == ["c"]


def test_many_at_once(feed):
    put(feed, *"abc")

    async def one():
        return [change.id async for change in towpath.follow(feed.url, once=True)]

    async def main():
        return await asyncio.gather(*(one() for _ in range(20)))

    assert asyncio.run(main()) == [["a", "b", "c"]] * 20


def test_errors_and_cancellation(feed, answers):
    base = answers(lambda path: (200, "text/html", b"<title>x</title>"))

    async def waits(url):
        async for _ in towpath.follow(url):
            pass

    with pytest.raises(towpath.ProtocolError):
        asyncio.run(waits(base + "/page"))
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(waits(feed.url), 0.5))
    assert follow_threads() == []


def test_a_loop_that_closes_and_a_generator_that_is_dropped(feed):
    put(feed, "a")
    kept = []

    async def begins():
        changes = towpath.follow(feed.url)
        kept.append(changes)
        assert (await changes.__anext__()).id == "a"

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begins())
    loop.close()
    kept.clear()
    gc.collect()
    assert follow_threads() == []

    async def drops():
        changes = towpath.follow(feed.url)
        assert (await changes.__anext__()).id == "a"
        waiting = asyncio.ensure_future(changes.__anext__())
        await asyncio.sleep(0.1)
        waiting.cancel()
        del changes

    asyncio.run(drops())
    gc.collect()
    assert follow_threads() == []


def test_async_with(feed, tmp_path):
    put(feed, "a", "b")
    state = tmp_path / "state"

    async def main():
        async with towpath.follow(feed.url, state=state) as changes:
            async for change in changes:
                if change.id == "b":
                    return

    asyncio.run(main())
    assert len(json.loads(state.read_text())["acknowledged"]) == 1
    assert ids(towpath.follow(feed.url, state=state, once=True)) == ["b"]
