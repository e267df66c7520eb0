"""The moments of pods and kills. The measurement itself needs a real node."""

from statistics import fmean

from benchmarks.cluster_kills import KILLS_EVERY, PODS_EVERY, schedule


def test_each_kind_gets_the_same_moments_by_chance():
    moments = schedule(1, 2_000)
    assert schedule(1, 2_000) == moments != schedule(2, 2_000)
    for each, every in ((moments.pods, PODS_EVERY), (moments.kills, KILLS_EVERY)):
        gaps = [after - before for before, after in zip((0.0, *each), each, strict=False)]
        assert 0.9 < fmean(gaps) / every < 1.1
        assert fmean(gap > every for gap in gaps) < 0.5, "a memory: kills would avoid starts"
    assert moments.kills[-1] < moments.pods[-1]
