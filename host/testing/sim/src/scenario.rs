//! One row of the scenario table.

use std::collections::BTreeSet;

use crate::{
    ApiFault, DriverFault, EnvironmentKind, FinalState, PublishingBehavior, ResizingBehavior, Simulation,
    SnapshotBehavior, TopologyBehavior, UserAction, WaitFor, WorkKind, objects::DRIVER,
};

/// A row of the scenario table.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// Situation and result.
    pub name: &'static str,
    /// Actions of the user.
    pub actions: Vec<UserAction>,
    /// Faults of create calls: one for each call, in order. Later calls have no fault.
    pub create_faults: Vec<DriverFault>,
    /// Values of the parameter `tier` for which create calls fail with a final `Internal`, except calls with
    /// a fault, until [`UserAction::Repair`].
    pub failing_tiers: &'static [&'static str],
    /// Key that the secrets of create calls need: without it, they fail with a final `Unauthenticated`.
    pub required_secret_key: Option<&'static str>,
    /// Name of the driver; `None` for that of [`objects`](crate::objects).
    pub driver_name: Option<&'static str>,
    /// Faults of delete calls: one for each call, in order. Later calls have no fault.
    pub delete_faults: Vec<DriverFault>,
    /// True if the driver does not have CREATE_DELETE_VOLUME.
    pub lacks_create_delete: bool,
    /// Faults of the processes' API requests. Each applies to the next request that it matches.
    pub api_faults: Vec<ApiFault>,
    /// Publish behavior of the driver.
    pub publishing: PublishingBehavior,
    /// True if the driver has ListVolumes, which returns the nodes that volumes are published to.
    pub lists_published_nodes: bool,
    /// Expand and modify behavior of the driver.
    pub resizing: ResizingBehavior,
    /// Snapshot behavior of the driver.
    pub snapshotting: SnapshotBehavior,
    /// Topology behavior of the driver.
    pub topology: TopologyBehavior,
    /// Nodes with node-local storage of the driver; empty for a central driver.
    pub storage_nodes: &'static [&'static str],
    /// Expected [`FinalState::claims`].
    pub claims: &'static [&'static str],
    /// Expected [`FinalState::volumes`].
    pub volumes: &'static [&'static str],
    /// Expected [`FinalState::resizes`].
    pub resizes: &'static [&'static str],
    /// Expected [`FinalState::attachments`].
    pub attachments: &'static [&'static str],
    /// Expected [`FinalState::volumes_attached`].
    pub volumes_attached: &'static [&'static str],
    /// Expected [`FinalState::startup_taints`].
    pub startup_taints: &'static [&'static str],
    /// Expected [`FinalState::published`].
    pub published: &'static [&'static str],
    /// Expected [`FinalState::array_owners`].
    pub array_owners: &'static [&'static str],
    /// Expected [`FinalState::snapshots`].
    pub snapshots: &'static [&'static str],
    /// Expected [`FinalState::snapshot_contents`].
    pub snapshot_contents: &'static [&'static str],
    /// Expected [`FinalState::array_snapshots`].
    pub array_snapshots: &'static [&'static str],
    /// True if events, calls and unused faults are not compared, as after a crash.
    pub compares_objects_only: bool,
    /// Expected [`FinalState::events`], if no process crashed.
    pub events: &'static [&'static str],
    /// Events that in real time may occur or not, whether they are expected or not, because a controller
    /// emits them after a delay.
    pub delayed_events: &'static [&'static str],
    /// Expected [`FinalState::calls`], if no process crashed.
    pub calls: &'static [&'static str],
    /// True if calls are repeated until a time has passed, or for ever. In real time, the different calls are
    /// compared then, in the order of their first occurrence, and not their number. The last call is
    /// compared, too, unless [`unsettled`](Self::unsettled) declares that calls remain.
    pub repeats_calls: bool,
    /// True if timing decides the order of calls, and how often one is repeated. In real time, only the
    /// different calls are compared then.
    pub races_calls: bool,
    /// True if a timeout of the attach-detach controller elapses. In real time, its timeouts are then shorter
    /// than the time after which an idle process counts as such.
    pub elapses_timeouts: bool,
    /// True if the driver rejects calls for ever. In real time, `--retry-interval-max` then has its default,
    /// so that the processes are idle between two retries.
    pub retries_slowly: bool,
    /// Expected [`FinalState::violations`]: those that no controller can prevent.
    pub violations: &'static [&'static str],
    /// Kinds of [`FinalState::remaining_work`] that remain, each with the reason. In paused time each has to
    /// remain, in real time it may.
    pub unsettled: &'static [(WorkKind, &'static str)],
    /// Environments that cannot run the scenario, with the reason.
    pub skipped_on: &'static [(EnvironmentKind, &'static str)],
}

impl Scenario {
    /// The reason why the environment cannot run the scenario; `None` if it can.
    pub fn skip_reason(&self, environment: EnvironmentKind) -> Option<&'static str> {
        self.skipped_on.iter().find(|(skipped, _)| *skipped == environment).map(|(_, reason)| *reason)
    }

    /// Applies the behavior of the driver, the faults of API writes and the storage nodes to a simulation.
    /// The faults of create and delete calls are arguments of [`Simulation::new`]. The simulation also checks
    /// whether new processes find work at the end.
    pub fn configure(&self, simulation: Simulation) -> Simulation {
        simulation
            .with_create_delete(!self.lacks_create_delete)
            .with_failing_tiers(self.failing_tiers)
            .with_required_secret_key(self.required_secret_key)
            .with_driver_name(self.driver_name.unwrap_or(DRIVER))
            .with_publishing(self.publishing.clone(), self.lists_published_nodes)
            .with_resizing(self.resizing.clone())
            .with_snapshots(self.snapshotting.clone())
            .with_topology(self.topology)
            .with_node_local_driver(self.storage_nodes)
            .with_api_faults(self.api_faults.clone())
            .with_stuck_intents(self.may_have_stuck_intent())
            .with_elapsing_timeouts(self.elapses_timeouts)
            .with_slow_retries(self.retries_slowly)
            .with_rest_check()
    }

    /// Returns true if an intent is stuck in the scenario, or may be after a crash.
    fn may_have_stuck_intent(&self) -> bool {
        let is_stuck = |event: &str| event.ends_with(" VolumeCreationStuck");
        self.events.iter().any(|event| is_stuck(event))
            || self
                .actions
                .iter()
                .any(|action| matches!(action, UserAction::Until(WaitFor::Event(event)) if is_stuck(event)))
    }

    /// [`differences`](Self::differences) in real time: [`delayed_events`](Self::delayed_events) may occur or
    /// not.
    pub fn real_time_differences(&self, mut final_state: FinalState, crashed: bool) -> Vec<String> {
        final_state.events.retain(|event| {
            let is_slow_call = event.ends_with(SLOW_CALL) && !self.events.contains(&event.as_str());
            !is_slow_call && !self.delayed_events.contains(&event.as_str())
        });
        let delayed = self.events.iter().filter(|event| self.delayed_events.contains(event));
        final_state.events.extend(delayed.map(|event| (*event).to_owned()));
        final_state.events.sort();
        if self.has_expected_real_time_calls(&final_state.calls) {
            final_state.calls = self.calls.iter().map(|call| (*call).to_owned()).collect();
        }
        self.differences_without_missing_work(&final_state, crashed)
    }

    /// Returns true if the calls differ from the expected ones only in what timing decides.
    fn has_expected_real_time_calls(&self, calls: &[String]) -> bool {
        let (mut found, mut expected) = (first_calls(calls), first_calls(self.calls));
        if self.races_calls {
            found.sort_unstable();
            expected.sort_unstable();
            return found == expected;
        }
        let ends = !self.unsettled.iter().any(|(kind, _)| *kind == WorkKind::Call);
        let is_last_expected = || calls.last().map(String::as_str) == self.calls.last().copied();
        self.repeats_calls && found == expected && (!ends || is_last_expected())
    }

    /// Differences from the expected final state, in which no intent and no unused fault remains, and in
    /// which new processes find the work of [`unsettled`](Self::unsettled) only. With `crashed`, events,
    /// driver calls and unused faults are not compared: after a crash, calls may be repeated and events lost.
    pub fn differences(&self, final_state: &FinalState, crashed: bool) -> Vec<String> {
        let mut differences = self.differences_without_missing_work(final_state, crashed);
        for (kind, reason) in self.unsettled {
            if !final_state.remaining_work.iter().any(|work| work.kind == *kind) {
                differences.push(format!(
                    "{}: new processes find no {kind:?}, which `unsettled` declares: {reason}",
                    self.name
                ));
            }
        }
        differences
    }

    /// The messages of the events that the scenario does not expect, for the text of a difference.
    fn unexpected_messages(&self, final_state: &FinalState) -> String {
        let unexpected = final_state.events.iter().filter(|event| !self.events.contains(&event.as_str()));
        let messages = unexpected.filter_map(|event| final_state.event_messages.get_key_value(event));
        messages.map(|(event, message)| format!("; {event}: {message}")).collect()
    }

    /// [`differences`](Self::differences), but kinds of work in [`unsettled`](Self::unsettled) need not
    /// remain.
    fn differences_without_missing_work(&self, final_state: &FinalState, crashed: bool) -> Vec<String> {
        let mut differences = Vec::new();
        let mut compare = |field: &str, found: &[String], expected: &[&str]| {
            if found != expected {
                let messages =
                    if field == "events" { self.unexpected_messages(final_state) } else { String::new() };
                differences.push(format!(
                    "{}: {field}: expected {expected:?}, found {found:?}{messages}",
                    self.name
                ));
            }
        };
        compare("violations", &final_state.violations, self.violations);
        compare("claims", &final_state.claims, self.claims);
        compare("volumes", &final_state.volumes, self.volumes);
        compare("resizes", &final_state.resizes, self.resizes);
        compare("attachments", &final_state.attachments, self.attachments);
        compare("volumesAttached", &final_state.volumes_attached, self.volumes_attached);
        compare("startup taints", &final_state.startup_taints, self.startup_taints);
        compare("published", &final_state.published, self.published);
        compare("array owners", &final_state.array_owners, self.array_owners);
        compare("snapshots", &final_state.snapshots, self.snapshots);
        compare("snapshot contents", &final_state.snapshot_contents, self.snapshot_contents);
        compare("array snapshots", &final_state.array_snapshots, self.array_snapshots);
        compare("intents", &[final_state.intents.to_string()], &["0"]);
        if !crashed && !self.compares_objects_only {
            compare("events", &final_state.events, self.events);
            compare("calls", &final_state.calls, self.calls);
            compare("unused faults", &final_state.unused_faults, &[]);
        }
        let is_declared = |kind| self.unsettled.iter().any(|(declared, _)| *declared == kind);
        for work in final_state.remaining_work.iter().filter(|work| !is_declared(work.kind)) {
            differences.push(format!("{}: new processes find work: {work}", self.name));
        }
        differences
    }
}

/// End of the event that the provisioner emits if CreateVolume takes longer than a second. In real time it
/// may be emitted in any row, because the machine may be busy.
const SLOW_CALL: &str = " Normal Provisioning";

/// The different calls, in the order of their first occurrence.
fn first_calls<T: AsRef<str>>(calls: &[T]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    calls.iter().map(AsRef::as_ref).filter(|call| seen.insert(*call)).collect()
}

/// Skips a scenario on the environments that run in real time.
pub(crate) const fn in_real_time(reason: &'static str) -> [(EnvironmentKind, &'static str); 2] {
    [(EnvironmentKind::Http, reason), (EnvironmentKind::Kubernetes, reason)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RemainingWork;

    #[test]
    fn remaining_work_and_its_declaration_must_agree() {
        let at_rest = FinalState::default();
        let (kind, roles, description) = (WorkKind::Call, "attacher".to_owned(), "x".to_owned());
        let work = RemainingWork { kind, roles, count: 2, description };
        let unsettled = FinalState { remaining_work: vec![work], ..at_rest.clone() };
        let settles = Scenario { name: "row", ..Scenario::default() };
        let declares = Scenario { unsettled: &[(WorkKind::Call, "it fails")], ..settles.clone() };

        assert_eq!(settles.differences(&at_rest, false), [""; 0]);
        assert_eq!(declares.differences(&unsettled, false), [""; 0]);
        assert_eq!(
            settles.differences(&unsettled, true),
            ["row: new processes find work: 2 × Call by attacher: x"]
        );
        assert_eq!(
            declares.differences(&at_rest, true),
            ["row: new processes find no Call, which `unsettled` declares: it fails"]
        );
        let calls = |calls: &[&str]| FinalState {
            calls: calls.iter().map(|call| (*call).to_owned()).collect(),
            ..at_rest.clone()
        };
        let repeats =
            Scenario { calls: &["create a", "create a", "delete a"], repeats_calls: true, ..settles.clone() };
        for (found, expected) in [
            (&["create a", "delete a"][..], 0),
            (&["delete a", "create a"], 1),
            (&["create a"], 1),
            (&["create a", "publish a", "delete a"], 1),
        ] {
            assert_eq!(repeats.real_time_differences(calls(found), false).len(), expected, "{found:?}");
        }
        assert_eq!(repeats.differences(&calls(&["create a", "delete a"]), false).len(), 1);
        let endless = Scenario { unsettled: &[(WorkKind::Call, "it fails")], ..repeats.clone() };
        for (found, expected) in
            [(&["create a", "delete a", "create a"][..], 0), (&["delete a", "create a", "delete a"], 1)]
        {
            assert_eq!(endless.real_time_differences(calls(found), false).len(), expected, "{found:?}");
            assert_eq!(repeats.real_time_differences(calls(found), false).len(), 1, "{found:?}");
        }
        let races = Scenario { repeats_calls: false, races_calls: true, ..repeats.clone() };
        for (found, expected) in [
            (&["delete a", "create a", "delete a"][..], 0),
            (&["create a"], 1),
            (&["create a", "publish a", "delete a"], 1),
        ] {
            assert_eq!(races.real_time_differences(calls(found), false).len(), expected, "{found:?}");
        }
        let events = |events: &[&str]| FinalState {
            events: events.iter().map(|event| (*event).to_owned()).collect(),
            ..at_rest.clone()
        };
        let delays =
            Scenario { events: &["late", "sure"], delayed_events: &["late", "rare"], ..settles.clone() };
        for (found, expected) in [
            (&["late", "sure"][..], 0),
            (&["rare", "sure"], 0),
            (&["a Normal Provisioning", "sure"], 0),
            (&["sure"], 0),
            (&["late", "rare"], 1),
            (&["other", "sure"], 1),
        ] {
            assert_eq!(delays.real_time_differences(events(found), false).len(), expected, "{found:?}");
        }
        assert_eq!(delays.differences(&events(&["sure"]), false).len(), 1);
        // In real time, the work may be due after the check.
        assert_eq!(declares.real_time_differences(at_rest, false), [""; 0]);
        assert_eq!(settles.real_time_differences(unsettled, false).len(), 1);
    }
}
