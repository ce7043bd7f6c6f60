//! What kubelet does next for a volume of its node: wanted by pods on the one side, mounted on the other.
//!
//! The order is kubelet's: what no pod wants is unmounted first; a volume is reported as in use before it is touched, and as used no
//! longer only after everything is undone; it is staged once, and published for each pod.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_domain::Uid;

/// How far something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Not there.
    #[default]
    Absent,
    /// A call has failed in a way that leaves open what it has done.
    Uncertain,
    /// There.
    Done,
}

/// What is decided on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Pods that want it.
    pub wants: BTreeSet<Uid>,
    /// Whether it is mounted for the node.
    pub device: Phase,
    /// Whether it is mounted for pods.
    pub mounts: BTreeMap<Uid, Phase>,
    /// Whether the pod describes it by itself: such a volume has no part for the node.
    pub inline: bool,
    /// Whether it has to be attached.
    pub attachable: bool,
    /// Whether the node's status says that it is attached.
    pub attached: bool,
    /// Whether the node's status says that it is in use.
    pub reported: bool,
    /// Whether one pod alone may use it.
    pub exclusive: bool,
    /// Whether the node's part of growing is to be done.
    pub grows: bool,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: everything is as it shall be.
    Rest,
    /// Something else comes first; the text says what.
    Wait(&'static str),
    /// The node's status has to say whether it is in use.
    Report,
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
pub fn next(facts: &Facts) -> Step {
    let unwanted = facts.mounts.keys().find(|pod| !facts.wants.contains(*pod));
    if let Some(pod) = unwanted {
        return Step::Unpublish(pod.clone());
    }
    let reports = facts.attachable && !facts.inline;
    if facts.wants.is_empty() {
        return match facts.device {
            Phase::Uncertain | Phase::Done => Step::Unstage,
            Phase::Absent if reports && facts.reported => Step::Report,
            Phase::Absent => Step::Rest,
        };
    }
    if reports && !facts.reported {
        return Step::Report;
    }
    if reports && !facts.attached {
        return Step::Wait("waits for the volume to be attached");
    }
    if facts.device != Phase::Done && !facts.inline {
        return Step::Stage;
    }
    let mounted = |pod: &&Uid| facts.mounts.get(*pod) == Some(&Phase::Done);
    // Growing begins with the mount of the first pod; the others wait for it as kubelet's do.
    if facts.grows
        && let Some(pod) = facts.wants.iter().find(mounted)
    {
        return Step::Expand(pod.clone());
    }
    let Some(next) = facts.wants.iter().find(|pod| !mounted(pod)) else { return Step::Rest };
    let another = facts.mounts.keys().any(|pod| pod != next);
    if facts.exclusive && another {
        return Step::Wait("the volume is for one pod alone, and another one has it");
    }
    Step::Publish(next.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(name: &str) -> Uid {
        Uid::new(name)
    }

    fn wanted(pods: &[&str]) -> Facts {
        let wants = pods.iter().map(|pod| uid(pod)).collect();
        Facts { wants, attachable: true, attached: true, reported: true, ..Facts::default() }
    }

    fn mounts(pods: &[(&str, Phase)]) -> BTreeMap<Uid, Phase> {
        pods.iter().map(|(pod, phase)| (uid(pod), *phase)).collect()
    }

    #[test]
    fn the_way_to_a_pod() {
        let unreported = Facts { reported: false, attached: false, ..wanted(&["a"]) };
        let unattached = Facts { attached: false, ..wanted(&["a"]) };
        let local = Facts { attachable: false, attached: false, reported: false, ..wanted(&["a"]) };
        let staged = Facts { device: Phase::Done, ..wanted(&["a", "b"]) };
        let one = Facts { mounts: mounts(&[("a", Phase::Done)]), ..staged.clone() };
        let failed = Facts { mounts: mounts(&[("a", Phase::Uncertain)]), ..staged.clone() };
        let both = Facts { mounts: mounts(&[("a", Phase::Done), ("b", Phase::Done)]), ..staged.clone() };
        let inline = Facts { inline: true, attachable: false, reported: false, ..wanted(&["a"]) };
        #[rustfmt::skip] // one row a case
        let table = [
            ("nothing",                     Facts::default(),                                    Step::Rest),
            ("in use, before anything",     unreported,                                          Step::Report),
            ("not attached",                unattached,  Step::Wait("waits for the volume to be attached")),
            ("never attached",              local,                                               Step::Stage),
            ("attached",                    wanted(&["a"]),                                      Step::Stage),
            ("staging uncertain",  Facts { device: Phase::Uncertain, ..wanted(&["a"]) },          Step::Stage),
            ("staged",                      staged.clone(),                                      Step::Publish(uid("a"))),
            ("published for one",           one.clone(),                                         Step::Publish(uid("b"))),
            ("publishing uncertain",        failed,                                              Step::Publish(uid("a"))),
            ("one pod alone",               Facts { exclusive: true, ..one.clone() },
                                            Step::Wait("the volume is for one pod alone, and another one has it")),
            ("growing before the next pod", Facts { grows: true, ..one },                        Step::Expand(uid("a"))),
            ("all there",                   both.clone(),                                        Step::Rest),
            ("growing",                     Facts { grows: true, ..both },                       Step::Expand(uid("a"))),
            ("inline",                      inline,                                              Step::Publish(uid("a"))),
        ];
        for (case, facts, expected) in table {
            assert_eq!(next(&facts), expected, "{case}");
        }
    }

    #[test]
    fn the_way_back() {
        let there = Facts {
            device: Phase::Done,
            mounts: mounts(&[("a", Phase::Done), ("b", Phase::Uncertain)]),
            ..wanted(&[])
        };
        let staged = Facts { mounts: BTreeMap::new(), ..there.clone() };
        let uncertain = Facts { device: Phase::Uncertain, ..staged.clone() };
        let free = Facts { device: Phase::Absent, ..staged.clone() };
        #[rustfmt::skip] // one row a case
        let table = [
            ("mounted",          there.clone(),                                             Step::Unpublish(uid("a"))),
            ("another has it",   Facts { wants: [uid("a")].into(), ..there },               Step::Unpublish(uid("b"))),
            ("staged",           staged,                                                    Step::Unstage),
            ("staged, or not",   uncertain,                                                 Step::Unstage),
            ("free",             free.clone(),                                              Step::Report),
            ("told",             Facts { reported: false, ..free.clone() },                 Step::Rest),
            ("never reported",   Facts { attachable: false, ..free },                       Step::Rest),
        ];
        for (case, facts, expected) in table {
            assert_eq!(next(&facts), expected, "{case}");
        }
    }
}
