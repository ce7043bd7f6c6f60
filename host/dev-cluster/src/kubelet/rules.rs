//! What kubelet does next for a volume of its node: wanted by pods on the one side, mounted on the other.
//!
//! The order is kubelet's: what no pod wants is unmounted first; a volume is reported as in use before it is
//! touched, and as used no longer only after everything is undone; it is staged once, and published for each
//! pod.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::Uid;

/// How far something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountState {
    /// Not there.
    #[default]
    NotMounted,
    /// A call has failed in a way that leaves open what it has done.
    Uncertain,
    /// There.
    Mounted,
}

/// What is decided on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountInput {
    /// Pods that want it.
    pub desired_pods: BTreeSet<Uid>,
    /// Whether it is mounted for the node.
    pub device_state: MountState,
    /// Whether it is mounted for pods.
    pub pod_mounts: BTreeMap<Uid, MountState>,
    /// Whether the pod describes it by itself: such a volume has no part for the node.
    pub inline: bool,
    /// Whether it has to be attached.
    pub attachable: bool,
    /// Whether the node's status says that it is attached.
    pub attached: bool,
    /// Whether the node's status says that it is in use.
    pub reported_in_use: bool,
    /// Whether one pod alone may use it.
    pub exclusive: bool,
    /// Whether the node's part of growing is to be done.
    pub expansion_due: bool,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountStep {
    /// Nothing: everything is as it shall be.
    Done,
    /// Something else comes first; the text says what.
    Wait(&'static str),
    /// The node's status has to say whether it is in use.
    ReportInUse,
    /// Mount it for the node.
    Stage,
    /// Mount it for a pod.
    Publish(Uid),
    /// Do the node's part of growing, by way of a pod's mount.
    Expand(Uid),
    /// Unmount it for a pod.
    Unpublish(Uid),
    /// Unmount it for the node.
    Unstage,
}

/// Decides.
pub fn next_step(input: &MountInput) -> MountStep {
    let unwanted_pod = input.pod_mounts.keys().find(|pod| !input.desired_pods.contains(*pod));
    if let Some(pod) = unwanted_pod {
        return MountStep::Unpublish(pod.clone());
    }
    let is_reportable = input.attachable && !input.inline;
    if input.desired_pods.is_empty() {
        return match input.device_state {
            MountState::Uncertain | MountState::Mounted => MountStep::Unstage,
            MountState::NotMounted if is_reportable && input.reported_in_use => MountStep::ReportInUse,
            MountState::NotMounted => MountStep::Done,
        };
    }
    if is_reportable && !input.reported_in_use {
        return MountStep::ReportInUse;
    }
    if is_reportable && !input.attached {
        return MountStep::Wait("waits for the volume to be attached");
    }
    if input.device_state != MountState::Mounted && !input.inline {
        return MountStep::Stage;
    }
    let is_mounted = |pod: &&Uid| input.pod_mounts.get(*pod) == Some(&MountState::Mounted);
    // Growing begins with the mount of the first pod; the others wait for it as kubelet's do.
    if input.expansion_due
        && let Some(pod) = input.desired_pods.iter().find(is_mounted)
    {
        return MountStep::Expand(pod.clone());
    }
    let Some(next) = input.desired_pods.iter().find(|pod| !is_mounted(pod)) else { return MountStep::Done };
    let is_used_by_another_pod = input.pod_mounts.keys().any(|pod| pod != next);
    if input.exclusive && is_used_by_another_pod {
        return MountStep::Wait("the volume is for one pod alone, and another one has it");
    }
    MountStep::Publish(next.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(name: &str) -> Uid {
        Uid::new(name)
    }

    fn input_for_pods(pods: &[&str]) -> MountInput {
        let wants = pods.iter().map(|pod| uid(pod)).collect();
        MountInput {
            desired_pods: wants,
            attachable: true,
            attached: true,
            reported_in_use: true,
            ..MountInput::default()
        }
    }

    fn pod_mounts(pods: &[(&str, MountState)]) -> BTreeMap<Uid, MountState> {
        pods.iter().map(|(pod, phase)| (uid(pod), *phase)).collect()
    }

    #[test]
    fn mount_steps_follow_kubelets_order() {
        let unreported = MountInput { reported_in_use: false, attached: false, ..input_for_pods(&["a"]) };
        let unattached = MountInput { attached: false, ..input_for_pods(&["a"]) };
        let local = MountInput {
            attachable: false,
            attached: false,
            reported_in_use: false,
            ..input_for_pods(&["a"])
        };
        let staged = MountInput { device_state: MountState::Mounted, ..input_for_pods(&["a", "b"]) };
        let published_for_one =
            MountInput { pod_mounts: pod_mounts(&[("a", MountState::Mounted)]), ..staged.clone() };
        let failed = MountInput { pod_mounts: pod_mounts(&[("a", MountState::Uncertain)]), ..staged.clone() };
        let published_for_both = MountInput {
            pod_mounts: pod_mounts(&[("a", MountState::Mounted), ("b", MountState::Mounted)]),
            ..staged.clone()
        };
        let inline =
            MountInput { inline: true, attachable: false, reported_in_use: false, ..input_for_pods(&["a"]) };
        #[rustfmt::skip] // one row a case
        let table = [
            ("nothing",                     MountInput::default(),                                    MountStep::Done),
            ("in use, before anything",     unreported,                                          MountStep::ReportInUse),
            ("not attached",                unattached,  MountStep::Wait("waits for the volume to be attached")),
            ("never attached",              local,                                               MountStep::Stage),
            ("attached",                    input_for_pods(&["a"]),                                      MountStep::Stage),
            ("staging uncertain",  MountInput { device_state: MountState::Uncertain, ..input_for_pods(&["a"]) },          MountStep::Stage),
            ("staged",                      staged.clone(),                                      MountStep::Publish(uid("a"))),
            ("published for one",           published_for_one.clone(),                                         MountStep::Publish(uid("b"))),
            ("publishing uncertain",        failed,                                              MountStep::Publish(uid("a"))),
            ("one pod alone",               MountInput { exclusive: true, ..published_for_one.clone() },
                                            MountStep::Wait("the volume is for one pod alone, and another one has it")),
            ("growing before the next pod", MountInput { expansion_due: true, ..published_for_one },                        MountStep::Expand(uid("a"))),
            ("all there",                   published_for_both.clone(),                                        MountStep::Done),
            ("growing",                     MountInput { expansion_due: true, ..published_for_both },                       MountStep::Expand(uid("a"))),
            ("inline",                      inline,                                              MountStep::Publish(uid("a"))),
        ];
        for (case, facts, expected) in table {
            assert_eq!(next_step(&facts), expected, "{case}");
        }
    }

    #[test]
    fn unmount_steps_follow_kubelets_order() {
        let mounted = MountInput {
            device_state: MountState::Mounted,
            pod_mounts: pod_mounts(&[("a", MountState::Mounted), ("b", MountState::Uncertain)]),
            ..input_for_pods(&[])
        };
        let staged = MountInput { pod_mounts: BTreeMap::new(), ..mounted.clone() };
        let uncertain = MountInput { device_state: MountState::Uncertain, ..staged.clone() };
        let free = MountInput { device_state: MountState::NotMounted, ..staged.clone() };
        #[rustfmt::skip] // one row a case
        let table = [
            ("mounted",          mounted.clone(),                                             MountStep::Unpublish(uid("a"))),
            ("another has it",   MountInput { desired_pods: [uid("a")].into(), ..mounted },               MountStep::Unpublish(uid("b"))),
            ("staged",           staged,                                                    MountStep::Unstage),
            ("staged, or not",   uncertain,                                                 MountStep::Unstage),
            ("free",             free.clone(),                                              MountStep::ReportInUse),
            ("told",             MountInput { reported_in_use: false, ..free.clone() },                 MountStep::Done),
            ("never reported",   MountInput { attachable: false, ..free },                       MountStep::Done),
        ];
        for (case, facts, expected) in table {
            assert_eq!(next_step(&facts), expected, "{case}");
        }
    }
}
