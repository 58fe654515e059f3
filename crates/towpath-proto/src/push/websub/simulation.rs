//! The whole in a simulated world: a publisher with a hub, a network that loses, doubles, delays and reorders, hubs and
//! subscribers that start again. The subscriber's output is always the log, in order, nothing missing, nothing twice.

mod world;

use jiff::SignedDuration;
use proptest::prelude::*;

use self::world::World;
use crate::change::{NewChange, Op};
use crate::item::Item;
use crate::smart::cursor::CursorKind;

#[derive(Debug, Clone)]
enum Happening {
    Put(u8),
    New,
    Delete(u8),
    Pass(u16),
    RestartHub,
    RestartFollower,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => Just(Happening::New),
        3 => (0..6_u8).prop_map(Happening::Put),
        1 => (0..6_u8).prop_map(Happening::Delete),
        5 => (0..40_u16).prop_map(Happening::Pass),
        1 => (40..5000_u16).prop_map(Happening::Pass),
        1 => Just(Happening::RestartHub),
        1 => Just(Happening::RestartFollower),
    ]
}

fn titled(id: String, title: String) -> NewChange {
    NewChange::put(Item { title: Some(title), ..Item::new(id) })
}

fn pass(world: &mut World, seconds: i64) {
    let end = world.now.saturating_add(SignedDuration::from_secs(seconds)).unwrap();
    world.run(end);
}

fn play(world: &mut World, happenings: &[Happening]) {
    for (index, happening) in happenings.iter().enumerate() {
        match happening {
            // Never two changes at the same time, so that each can be told from the others.
            Happening::New => world.append(titled(format!("new-{index}"), format!("{index}"))),
            Happening::Put(id) => world.append(titled(format!("item-{id}"), format!("{index}"))),
            Happening::Delete(id)
                if world.log.latest(&format!("item-{id}")).is_some_and(|c| c.op == Op::Put) =>
            {
                world.append(NewChange::delete(format!("item-{id}")));
            }
            Happening::Delete(_) => {}
            Happening::Pass(seconds) => pass(world, i64::from(*seconds)),
            Happening::RestartHub => world.restart_hub(),
            Happening::RestartFollower => world.restart_follower(),
        }
        world.now = world.now.saturating_add(SignedDuration::from_millis(1)).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Issue: pushes lost, doubled, reordered, delayed; hubs and subscribers that start again; edits and deletions.
    #[test]
    fn the_output_is_the_log(
        seed: u64,
        toc: bool,
        happenings in prop::collection::vec(happening(), 1..60),
    ) {
        let kind = if toc { CursorKind::Toc } else { CursorKind::Sequence };
        let mut world = World::new(seed, kind);
        play(&mut world, &happenings);
        // The network is well again, and a long silence has passed.
        world.is_bad = false;
        pass(&mut world, 3 * 60 * 60);
        world.judge();
    }
}

/// On a good network every change comes by push, once, and nothing is pulled.
#[test]
fn a_good_network_needs_no_pulls() {
    let mut world = World::new(1, CursorKind::Sequence);
    world.is_bad = false;
    world.append(titled("first".into(), "0".into()));
    pass(&mut world, 10);
    let pulls = world.pulls;
    for index in 0..50 {
        world.append(titled(format!("item-{}", index % 7), format!("{index}")));
        pass(&mut world, 1);
    }
    world.judge();
    assert_eq!(world.pulls, pulls);
    assert_eq!(world.pushes_taken, 50);
    assert_eq!(world.told.len(), 51);
}
