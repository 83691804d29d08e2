//! Tests of `backend::child::capacity`.

use futures_util::FutureExt;
use proptest::prelude::*;

use super::super::capacity::*;

type Requests = mpsc::Receiver<Wanted>;

fn capacity(count: usize) -> (Arc<Capacity>, Requests) {
    let (wanted, requests) = mpsc::channel(64);
    (Capacity::new(count, wanted), requests)
}

fn take(capacity: &Arc<Capacity>, tenant: &str, count: usize) -> Vec<CapacityPlace> {
    let place = || capacity.take(tenant, false).now_or_never();
    std::iter::repeat_with(place)
        .map_while(|one| one)
        .take(count)
        .collect()
}

/// Answers a request; the tenants that are asked for a child.
fn answered(wanted: Wanted, is_given: bool) -> Vec<String> {
    let Holders::Tenants(tenants) = wanted.holders else {
        panic!("callers were asked");
    };
    wanted.reply.send(is_given).unwrap();
    tenants
}

/// The tenants that have been asked for a child, which one gives up.
fn asked(requests: &mut Requests) -> Option<Vec<String>> {
    let wanted = requests.try_recv().ok()?;
    Some(answered(wanted, true))
}

#[tokio::test]
async fn a_tenant_has_all_that_no_other_wants_and_gives_up_what_is_more_than_anothers() {
    let (capacity, mut requests) = capacity(4);
    let mut held = take(&capacity, "a", 5);
    assert_eq!(held.len(), 4);
    let mut own = Box::pin(capacity.take("a", false));
    assert!((&mut own).now_or_never().is_none());
    assert!(asked(&mut requests).is_none(), "nobody has more");
    let mut of_b = Vec::new();
    for _ in 0..2 {
        let mut newcomer = Box::pin(capacity.take("b", false));
        assert!((&mut newcomer).now_or_never().is_none());
        assert_eq!(asked(&mut requests), Some(vec!["a".to_owned()]));
        held[0].leave();
        held.remove(0);
        assert!((&mut own).now_or_never().is_none(), "it has more");
        of_b.push(newcomer.await);
    }
    // Two each: nobody gives another one up.
    let mut third = Box::pin(capacity.take("b", false));
    assert!((&mut third).now_or_never().is_none());
    assert!(asked(&mut requests).is_none());
    of_b.pop();
    assert!((&mut own).now_or_never().is_none());
    third.await;
}

/// While all children of the other tenant were in use.
#[tokio::test]
async fn those_that_have_more_are_asked_until_one_gives_way() {
    let (capacity, mut requests) = capacity(3);
    let mut held = take(&capacity, "a", 2);
    let _of_c = take(&capacity, "c", 1);
    let mut newcomer = Box::pin(capacity.take("b", false));
    for is_given in [false, false, true] {
        let wanted = select! {
            wanted = requests.recv() => wanted.unwrap(),
            _ = &mut newcomer => panic!("none is free"),
        };
        assert_eq!(answered(wanted, is_given), ["a"]);
    }
    assert!((&mut newcomer).now_or_never().is_none());
    assert!(asked(&mut requests).is_none(), "one gives way already");
    held.pop();
    assert!(newcomer.now_or_never().is_some());
}

#[tokio::test]
async fn a_crowd_of_one_tenant_is_behind_each_that_has_fewer() {
    let (capacity, _requests) = capacity(2);
    let mut held = take(&capacity, "a", 2);
    let mut crowd: Vec<_> = (0..50)
        .map(|_| Box::pin(capacity.take("a", false)))
        .collect();
    for one in &mut crowd {
        assert!(one.now_or_never().is_none());
    }
    let mut late = Box::pin(capacity.take("b", true));
    assert!((&mut late).now_or_never().is_none());
    held.pop();
    assert!(crowd.iter_mut().all(|one| one.now_or_never().is_none()));
    assert!(late.now_or_never().is_some());
}

/// What a tenant does.
#[derive(Clone, Debug)]
enum Act {
    Begin,
    Poll(usize),
    GiveUpWaiting(usize),
    Leave(usize),
    End(usize),
}

fn act() -> impl Strategy<Value = (usize, Act)> {
    let act = prop_oneof![
        3 => Just(Act::Begin),
        2 => (0..8_usize).prop_map(Act::Poll),
        1 => (0..8_usize).prop_map(Act::GiveUpWaiting),
        1 => (0..8_usize).prop_map(Act::Leave),
        2 => (0..8_usize).prop_map(Act::End),
    ];
    (0..3_usize, act)
}

proptest! {
    #[test]
    fn places_are_never_lost_or_made(acts in proptest::collection::vec(act(), 1..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let (capacity, _requests) = capacity(4);
        let names = ["a", "b", "c"];
        let mut waiting: [Vec<_>; 3] = Default::default();
        let mut held: [Vec<CapacityPlace>; 3] = Default::default();
        for (at, act) in acts {
            let (waiting, held) = (&mut waiting[at], &mut held[at]);
            match act {
                Act::Begin => waiting.push(Box::pin(capacity.take(names[at], false))),
                Act::Poll(one) if one < waiting.len() => {
                    if let Some(place) = (&mut waiting[one]).now_or_never() {
                        held.push(place);
                        drop(waiting.swap_remove(one));
                    }
                }
                Act::GiveUpWaiting(one) if one < waiting.len() => drop(waiting.swap_remove(one)),
                Act::Leave(one) if one < held.len() => held[one].leave(),
                Act::End(one) if one < held.len() => drop(held.swap_remove(one)),
                _ => {}
            }
            let tenants = capacity.tenants();
            let taken: usize = tenants.by_name.values().map(|tenant| tenant.taken).sum();
            prop_assert_eq!(taken + tenants.free, 4);
            let is_waited_for = tenants.by_name.values().any(|tenant| !tenant.line.is_empty());
            prop_assert!(!is_waited_for || tenants.free == 0);
        }
        drop((waiting, held));
        let tenants = capacity.tenants();
        prop_assert_eq!((tenants.free, tenants.by_name.len()), (4, 0));
    }
}
