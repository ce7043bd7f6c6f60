//! Groups of a process's drivers: each has a leadership of its own, so that the replicas of a process share
//! the drivers, and one that ends hands over each driver as soon as its calls have ended.

use std::collections::BTreeSet;

use cofferdam_cluster::leadership::Leadership;
use cofferdam_domain::{
    DriverName,
    term::{Permit, PermitSource, TermEnded},
};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Drivers with which the controllers of a process work in the terms of one leadership.
#[derive(Clone, Debug)]
pub struct DriverGroup {
    /// Names of the drivers; empty for controllers that need none.
    pub drivers: BTreeSet<DriverName>,
    /// The terms.
    pub leadership: Leadership,
    /// True if the group is ready while it waits for a term. Otherwise it is ready while it leads: an only
    /// owner ends if another process leads, and must not be taken for a standby before.
    pub is_ready_as_standby: bool,
}

/// Permits of a process: it leads if any of its groups does.
pub(crate) struct AnyLeadership(Vec<Leadership>);

impl AnyLeadership {
    pub(crate) fn new(groups: &[DriverGroup]) -> Self {
        Self(groups.iter().map(|group| group.leadership.clone()).collect())
    }
}

impl PermitSource for AnyLeadership {
    fn permit(&self) -> Result<Permit, TermEnded> {
        self.0.iter().find_map(|leadership| leadership.permit().ok()).ok_or(TermEnded)
    }
}

/// Readiness of a process: that of all its groups.
pub(crate) struct Readiness<'a> {
    process: &'a watch::Sender<bool>,
    groups: Mutex<Vec<bool>>,
}

impl<'a> Readiness<'a> {
    /// The readiness of a process with this number of groups. None is ready.
    pub(crate) fn new(process: &'a watch::Sender<bool>, groups: usize) -> Self {
        Self { process, groups: Mutex::new(vec![false; groups]) }
    }

    /// The readiness of one group.
    pub(crate) const fn of_group(&self, index: usize) -> GroupReadiness<'_> {
        GroupReadiness { process: self, index }
    }
}

/// Readiness of one group.
#[derive(Clone, Copy)]
pub(crate) struct GroupReadiness<'a> {
    process: &'a Readiness<'a>,
    index: usize,
}

impl GroupReadiness<'_> {
    pub(crate) fn set(self, is_ready: bool) {
        let Readiness { process, groups } = self.process;
        let mut groups = groups.lock();
        if let Some(group) = groups.get_mut(self.index) {
            *group = is_ready;
        }
        process.send_replace(groups.iter().all(|is_ready| *is_ready));
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::term::Term;

    use super::*;

    #[test]
    fn a_process_is_ready_if_every_group_is() {
        let (sender, receiver) = watch::channel(false);
        let readiness = Readiness::new(&sender, 2);
        for (group, is_ready, expected) in
            [(0, true, false), (1, true, true), (0, false, false), (0, true, true), (1, false, false)]
        {
            readiness.of_group(group).set(is_ready);
            assert_eq!(*receiver.borrow(), expected, "group {group}: {is_ready}");
        }
    }

    #[test]
    fn a_process_has_permits_while_any_group_leads() {
        let ((first, first_leadership), (second, second_leadership)) =
            (Leadership::elected(), Leadership::elected());
        let group =
            |leadership| DriverGroup { drivers: BTreeSet::new(), leadership, is_ready_as_standby: true };
        let permits = AnyLeadership::new(&[group(first_leadership), group(second_leadership)]);
        assert!(permits.permit().is_err());
        second.begin(Term::permanent());
        assert!(permits.permit().is_ok());
        first.begin(Term::permanent());
        second.end();
        assert!(permits.permit().is_ok());
        first.end();
        assert!(permits.permit().is_err());
    }
}
