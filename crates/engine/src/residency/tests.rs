//! Residency on hand-made cases.

use super::*;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn want(model: u64, arrived: u64, aged: bool) -> Demand {
    Demand {
        model: ModelKey(model),
        arrived: ms(arrived),
        aged,
    }
}

/// Variants 1..=n of ten bytes each.
fn residency(bytes: u64, n: u64) -> Residency<u64> {
    let mut r = Residency::new(bytes);
    for key in 1..=n {
        r.register(ModelKey(key), 10);
    }
    r
}

fn load(r: &mut Residency<u64>, key: u64, now: u64) -> Moves {
    let moves = r.next_load(&[want(key, now, false)]);
    assert_eq!(moves.load, Some(ModelKey(key)));
    assert_eq!(r.availability(ModelKey(key)), Availability::Absent);
    r.loaded(ModelKey(key), key, ms(now));
    moves
}

/// github.com/vllm-project/vllm-metal/pull/641: also the first variant can leave.
#[test]
fn the_least_recently_used_variant_leaves_first() {
    let mut r = residency(20, 4);
    assert_eq!(load(&mut r, 1, 1).evicted, []);
    assert_eq!(load(&mut r, 2, 2).evicted, []);
    assert_eq!(load(&mut r, 3, 3).evicted, [ModelKey(1)]);
    drop(r.lease(ModelKey(2), ms(4)));
    assert_eq!(load(&mut r, 4, 5).evicted, [ModelKey(3)]);
    assert_eq!((r.bytes(), r.loads(), r.evictions()), (20, 4, 2));
}

#[test]
fn a_leased_variant_stays_and_an_idle_one_goes() {
    let mut r = residency(20, 3);
    load(&mut r, 1, 1);
    load(&mut r, 2, 2);
    let lease = r.lease(ModelKey(1), ms(3)).expect("resident");
    assert_eq!(lease.weights, 1);
    assert_eq!(load(&mut r, 3, 4).evicted, [ModelKey(2)]);
    let other = r.lease(ModelKey(3), ms(5));
    assert_eq!(r.next_load(&[want(2, 6, false)]), Moves::default(), "both are in use");
    assert_eq!(
        r.availability(ModelKey(1)),
        Availability::Ready,
        "nothing is drained before the aging bound"
    );
    drop((lease, other));
}

/// github.com/vllm-project/vllm/pull/15422: the head needs room, later requests use what is resident.
#[test]
fn an_aged_request_drains_the_longest_resident_variant() {
    let mut r = residency(20, 3);
    load(&mut r, 1, 1);
    load(&mut r, 2, 2);
    let one = r.lease(ModelKey(1), ms(3));
    let two = r.lease(ModelKey(2), ms(3));
    assert_eq!(r.next_load(&[want(3, 10, true)]), Moves::default());
    assert_eq!(
        r.availability(ModelKey(1)),
        Availability::ReadyFor { arrived_by: ms(10) }
    );
    assert_eq!(r.availability(ModelKey(2)), Availability::Ready);
    drop(one);
    let moves = r.next_load(&[want(3, 10, true)]);
    assert_eq!((moves.load, moves.evicted), (Some(ModelKey(3)), vec![ModelKey(1)]));
    drop(two);
}

#[test]
fn an_aged_request_is_not_overtaken_by_a_smaller_load() {
    let mut r = residency(20, 2);
    r.register(ModelKey(3), 15);
    load(&mut r, 1, 1);
    let _one = r.lease(ModelKey(1), ms(2));
    assert_eq!(
        r.next_load(&[want(3, 2, false), want(2, 3, false)]).load,
        Some(ModelKey(2))
    );
    r.refused(ModelKey(2));
    r.register(ModelKey(2), 10);
    assert_eq!(r.next_load(&[want(3, 2, true), want(2, 3, false)]).load, None);
}

#[test]
fn a_variant_that_an_older_request_waits_for_is_not_evicted() {
    let mut r = residency(10, 2);
    load(&mut r, 1, 1);
    assert_eq!(r.next_load(&[want(1, 1, false), want(2, 2, false)]), Moves::default());
    assert_eq!(
        r.next_load(&[want(2, 2, false), want(1, 3, false)]).load,
        Some(ModelKey(2))
    );
}

#[test]
fn a_forgotten_generation_lives_as_long_as_its_leases() {
    let mut r = residency(10, 1);
    load(&mut r, 1, 1);
    let lease = r.lease(ModelKey(1), ms(1)).expect("resident");
    r.forget(ModelKey(1));
    r.register(ModelKey(2), 10);
    assert_eq!(
        r.next_load(&[want(2, 2, true)]).load,
        None,
        "the old generation's bytes are still in use"
    );
    assert_eq!(lease.weights, 1);
    drop(lease);
    assert_eq!(r.next_load(&[want(2, 2, true)]).load, Some(ModelKey(2)));
}

#[test]
fn a_refused_variant_gives_its_bytes_back_and_is_not_tried_again() {
    let mut r = residency(10, 2);
    assert_eq!(r.next_load(&[want(1, 1, false)]).load, Some(ModelKey(1)));
    r.refused(ModelKey(1));
    assert_eq!(r.bytes(), 0);
    assert_eq!(r.next_load(&[want(1, 1, true)]), Moves::default());
    load(&mut r, 2, 2);
}

#[test]
fn a_variant_that_was_unregistered_while_it_loaded_does_not_come_back() {
    let mut r = residency(10, 1);
    assert_eq!(r.next_load(&[want(1, 1, false)]).load, Some(ModelKey(1)));
    r.forget(ModelKey(1));
    r.loaded(ModelKey(1), 1, ms(2));
    assert_eq!(r.availability(ModelKey(1)), Availability::Absent);
    assert_eq!(r.bytes(), 0);
}
