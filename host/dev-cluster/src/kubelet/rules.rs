//! Decides kubelet's next step for a volume of its node from desired and actual state.
//!
//! The order is kubelet's. A volume is first unmounted for pods that no longer use it. An attachable volume
//! is reported in use before it is mounted, and until it is completely unmounted. A volume is staged once,
//! unless it is inline, and published for each pod. If node expansion is due, it follows the first publish.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::Uid;

/// State of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountState {
    /// Not mounted.
    #[default]
    NotMounted,
    /// A call to stage or publish is in flight, or failed and may have taken effect.
    Uncertain,
    /// Mounted.
    Mounted,
}

/// Desired and actual state of one volume on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountInput {
    /// UIDs of the node's pods for which the volume has to be mounted.
    pub desired_pods: BTreeSet<Uid>,
    /// State of the staging mount. For a driver without STAGE_UNSTAGE_VOLUME it is `Mounted` once kubelet has
    /// created the staging directory.
    pub device_state: MountState,
    /// States of the published mounts, by pod.
    pub pod_mounts: BTreeMap<Uid, MountState>,
    /// True for an inline volume, which is not staged.
    pub inline: bool,
    /// True if the volume has to be attached before it is mounted. If no pod desires the volume and it is not
    /// mounted: true unless it is inline.
    pub attachable: bool,
    /// True if the volume is in the Node's `volumesAttached`.
    pub attached: bool,
    /// True if the volume is in the Node's `volumesInUse`.
    pub reported_in_use: bool,
    /// True if ReadWriteOncePod is the only access mode of the PersistentVolume.
    pub exclusive: bool,
    /// True if the volume requires node expansion and the driver has not refused it for a volume in use.
    pub expansion_due: bool,
}

/// Kubelet's next step for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountStep {
    /// Nothing to do.
    Done,
    /// Wait for the condition in the text.
    Wait(&'static str),
    /// Add the volume to the Node's `volumesInUse`, or remove it after it was unmounted.
    ReportInUse,
    /// Stage the volume on the node.
    Stage,
    /// Publish the volume for the pod with this UID.
    Publish(Uid),
    /// Expand the volume with NodeExpandVolume on the target path of this pod.
    Expand(Uid),
    /// Unpublish the volume for the pod with this UID.
    Unpublish(Uid),
    /// Unstage the volume from the node.
    Unstage,
}

/// Returns the next step.
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
        return MountStep::Wait("waiting for the volume to be attached");
    }
    if input.device_state != MountState::Mounted && !input.inline {
        return MountStep::Stage;
    }
    let is_mounted = |pod: &&Uid| input.pod_mounts.get(*pod) == Some(&MountState::Mounted);
    // Expansion follows the first mount; other pods wait for it, as in kubelet.
    if input.expansion_due
        && let Some(pod) = input.desired_pods.iter().find(is_mounted)
    {
        return MountStep::Expand(pod.clone());
    }
    let Some(next) = input.desired_pods.iter().find(|pod| !is_mounted(pod)) else { return MountStep::Done };
    let is_used_by_another_pod = input.pod_mounts.keys().any(|pod| pod != next);
    if input.exclusive && is_used_by_another_pod {
        return MountStep::Wait("waiting for another pod that uses the ReadWriteOncePod volume");
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
        let desired_pods = pods.iter().map(|pod| uid(pod)).collect();
        MountInput {
            desired_pods,
            attachable: true,
            attached: true,
            reported_in_use: true,
            ..MountInput::default()
        }
    }

    fn pod_mounts(pods: &[(&str, MountState)]) -> BTreeMap<Uid, MountState> {
        pods.iter().map(|(pod, state)| (uid(pod), *state)).collect()
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
        let table = [
            ("nothing", MountInput::default(), MountStep::Done),
            ("in use first", unreported, MountStep::ReportInUse),
            ("not attached", unattached, MountStep::Wait("waiting for the volume to be attached")),
            ("not attachable", local, MountStep::Stage),
            ("attached", input_for_pods(&["a"]), MountStep::Stage),
            (
                "staging uncertain",
                MountInput { device_state: MountState::Uncertain, ..input_for_pods(&["a"]) },
                MountStep::Stage,
            ),
            ("staged", staged.clone(), MountStep::Publish(uid("a"))),
            ("published for one", published_for_one.clone(), MountStep::Publish(uid("b"))),
            ("publishing uncertain", failed, MountStep::Publish(uid("a"))),
            (
                "ReadWriteOncePod",
                MountInput { exclusive: true, ..published_for_one.clone() },
                MountStep::Wait("waiting for another pod that uses the ReadWriteOncePod volume"),
            ),
            (
                "expansion before the next pod",
                MountInput { expansion_due: true, ..published_for_one },
                MountStep::Expand(uid("a")),
            ),
            ("published for both", published_for_both.clone(), MountStep::Done),
            (
                "expansion",
                MountInput { expansion_due: true, ..published_for_both },
                MountStep::Expand(uid("a")),
            ),
            ("inline", inline, MountStep::Publish(uid("a"))),
        ];
        for (case, input, expected) in table {
            assert_eq!(next_step(&input), expected, "{case}");
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
        let table = [
            ("mounted", mounted.clone(), MountStep::Unpublish(uid("a"))),
            (
                "mounted for one former pod",
                MountInput { desired_pods: [uid("a")].into(), ..mounted },
                MountStep::Unpublish(uid("b")),
            ),
            ("staged", staged, MountStep::Unstage),
            ("staging uncertain", uncertain, MountStep::Unstage),
            ("unstaged", free.clone(), MountStep::ReportInUse),
            ("in use removed", MountInput { reported_in_use: false, ..free.clone() }, MountStep::Done),
            ("never reported", MountInput { attachable: false, ..free }, MountStep::Done),
        ];
        for (case, input, expected) in table {
            assert_eq!(next_step(&input), expected, "{case}");
        }
    }
}
