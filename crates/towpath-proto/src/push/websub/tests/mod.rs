//! End-to-end simulation: a publisher with a hub, a network that loses, duplicates, delays and reorders
//! messages, and restarts of hub and subscriber. The subscriber's output must equal the log: in order,
//! complete, without duplicates.

mod simulation;

use jiff::SignedDuration;
use proptest::prelude::*;

use self::simulation::HubSimulation;
use crate::change::{NewChange, Op};
use crate::item::Item;
use crate::smart::cursor::CursorKind;

#[derive(Debug, Clone)]
enum SimulatedEvent {
    Put(u8),
    New,
    Delete(u8),
    Pass(u16),
    RestartHub,
    RestartFollower,
}

fn happening() -> impl Strategy<Value = SimulatedEvent> {
    prop_oneof![
        4 => Just(SimulatedEvent::New),
        3 => (0..6_u8).prop_map(SimulatedEvent::Put),
        1 => (0..6_u8).prop_map(SimulatedEvent::Delete),
        5 => (0..40_u16).prop_map(SimulatedEvent::Pass),
        1 => (40..5000_u16).prop_map(SimulatedEvent::Pass),
        1 => Just(SimulatedEvent::RestartHub),
        1 => Just(SimulatedEvent::RestartFollower),
    ]
}

fn titled(id: String, title: String) -> NewChange {
    NewChange::put(Item { title: Some(title), ..Item::new(id) })
}

fn pass(simulation: &mut HubSimulation, seconds: i64) {
    let end = simulation.now.saturating_add(SignedDuration::from_secs(seconds)).unwrap();
    simulation.run(end);
}

fn play(simulation: &mut HubSimulation, happenings: &[SimulatedEvent]) {
    for (index, happening) in happenings.iter().enumerate() {
        match happening {
            // Changes get distinct times, so that the output can tell them apart.
            SimulatedEvent::New => simulation.append(titled(format!("new-{index}"), format!("{index}"))),
            SimulatedEvent::Put(id) => simulation.append(titled(format!("item-{id}"), format!("{index}"))),
            SimulatedEvent::Delete(id)
                if simulation.log.latest(&format!("item-{id}")).is_some_and(|c| c.op == Op::Put) =>
            {
                simulation.append(NewChange::delete(format!("item-{id}")));
            }
            SimulatedEvent::Delete(_) => {}
            SimulatedEvent::Pass(seconds) => pass(simulation, i64::from(*seconds)),
            SimulatedEvent::RestartHub => simulation.restart_hub(),
            SimulatedEvent::RestartFollower => simulation.restart_follower(),
        }
        simulation.now = simulation.now.saturating_add(SignedDuration::from_millis(1)).unwrap();
    }
}

proptest! {
    #![proptest_config(crate::histories::cases(200))]

    /// Lost, duplicated, reordered and delayed pushes; restarts of hub and subscriber; edits and deletions.
    #[test]
    fn the_output_is_the_log(
        seed: u64,
        toc: bool,
        happenings in prop::collection::vec(happening(), 1..60),
    ) {
        let kind = if toc { CursorKind::Toc } else { CursorKind::Sequence };
        let mut simulation = HubSimulation::new(seed, kind);
        play(&mut simulation, &happenings);
        // The network has recovered, and a long silence has passed.
        simulation.is_lossy = false;
        pass(&mut simulation, 3 * 60 * 60);
        simulation.assert_output_is_log();
    }
}

/// On a reliable network every change is pushed once, and nothing is pulled.
#[test]
fn a_good_network_needs_no_pulls() {
    let mut simulation = HubSimulation::new(1, CursorKind::Sequence);
    simulation.is_lossy = false;
    simulation.append(titled("first".into(), "0".into()));
    pass(&mut simulation, 10);
    let pulls = simulation.pulls;
    for index in 0..50 {
        simulation.append(titled(format!("item-{}", index % 7), format!("{index}")));
        pass(&mut simulation, 1);
    }
    simulation.assert_output_is_log();
    assert_eq!(simulation.pulls, pulls);
    assert_eq!(simulation.pushes_accepted, 50);
    assert_eq!(simulation.output.len(), 51);
}
