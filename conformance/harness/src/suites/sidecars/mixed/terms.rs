//! The terms of leaders in the audit log: a replica writes only while it holds the Lease.

use std::{collections::BTreeMap, fmt};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;

use crate::{audit::AuditEvent, implementation::Implementation, namespaces, suites::sidecars::slot::Slot};

/// Number of terms that each implementation has at least.
const MIN_TERMS: usize = 2;
/// Resources that processes write without the Lease: the Lease itself, events, and reviews of their rights.
const WRITTEN_WITHOUT_LEASE: [&str; 4] =
    ["leases", "events", "selfsubjectaccessreviews", "selfsubjectrulesreviews"];

/// One of the processes that compete for a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) slot: Slot,
    pub(super) implementation: Implementation,
    /// Name of the process, of its log and of its service account.
    pub(super) name: String,
    /// Its identity in the Lease begins with it.
    pub(super) host_name: String,
}

impl Replica {
    pub(super) fn new(slot: Slot, implementation: Implementation, number: usize) -> Self {
        let host_name = format!("{}-{number}", implementation.as_str().to_lowercase());
        Self { slot, implementation, name: format!("{}-{host_name}", slot.name), host_name }
    }

    /// True if `holder` is the identity of this replica, in any run of the process: its host name, and a
    /// random part if it is Cofferdam.
    pub(super) fn is_identity(&self, holder: &str) -> bool {
        let Some(random) = holder.strip_prefix(&self.host_name) else { return false };
        match self.implementation {
            Implementation::Upstream => random.is_empty(),
            Implementation::Cofferdam => random.len() > 1 && random.starts_with('-'),
        }
    }

    fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", namespaces::COFFERDAM, self.name)
    }
}

/// Numbers of terms and of writes by implementation, and of the writes of the Lease with an unknown result.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    upstream: Counts,
    cofferdam: Counts,
    lease_writes_in_doubt: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    terms: usize,
    writes: usize,
}

impl Summary {
    const fn counts(&mut self, implementation: Implementation) -> &mut Counts {
        match implementation {
            Implementation::Upstream => &mut self.upstream,
            Implementation::Cofferdam => &mut self.cofferdam,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, cofferdam, lease_writes_in_doubt } = self;
        write!(
            f,
            "upstream led {} times and made {} writes, Cofferdam {} times and {}: 0 without the Lease; \
             {lease_writes_in_doubt} writes of the Lease have an unknown result",
            upstream.terms, upstream.writes, cofferdam.terms, cofferdam.writes
        )
    }
}

/// Checks that every write of `replicas`, except of Leases, events and reviews, was received after a write
/// that set its replica as the holder of `lease`, and before a write that set another one or none. A write of
/// the Lease with an unknown result starts and ends no term: its replica does not lead before a later
/// success.
///
/// # Errors
/// The first other write, a holder that is not the writer, or an implementation that led less than twice.
pub(super) fn check(requests: &[AuditEvent], lease: &str, replicas: &[&Replica]) -> Result<Summary> {
    let by_user: BTreeMap<String, &Replica> =
        replicas.iter().map(|replica| (replica.user(), *replica)).collect();
    // Time and holder after each write of the Lease.
    let mut holders: Vec<(Timestamp, Option<&Replica>)> = Vec::new();
    let mut summary = Summary::default();
    // The audit log is in the order in which its lines were written, which may differ.
    let mut by_completion: Vec<&AuditEvent> = requests.iter().filter(|request| request.is_write()).collect();
    by_completion.sort_by_key(|request| request.completed);
    for request in by_completion {
        let name = request.object_ref.as_ref().and_then(|object| object.name.as_deref());
        let Some(replica) = by_user.get(&request.user.username) else { continue };
        // The path of a creation has no name, and each service account creates its Lease only.
        let is_lease = request.resource() == "leases" && (name == Some(lease) || request.verb == "create");
        if is_lease && request.is_in_doubt() {
            summary.lease_writes_in_doubt += 1;
        }
        if !is_lease || !request.is_successful() {
            continue;
        }
        let identity = request.holder().context("a write of a Lease without a holder")?;
        ensure!(
            identity.is_empty() || replica.is_identity(identity),
            "{} makes {identity:?} the holder",
            replica.name
        );
        let holder = (!identity.is_empty()).then_some(*replica);
        let before = holders.iter().rev().find_map(|(_, holder)| *holder);
        if let Some(holder) = holder.filter(|holder| before != Some(*holder)) {
            summary.counts(holder.implementation).terms += 1;
        }
        holders.push((request.completed.context("a request without a time")?, holder));
    }
    for request in requests.iter().filter(|request| request.is_write()) {
        let Some(replica) = by_user.get(&request.user.username) else { continue };
        if WRITTEN_WITHOUT_LEASE.contains(&request.resource()) {
            continue;
        }
        let received = request.received.context("a request without a time")?;
        let end = holders.partition_point(|(set_at, _)| *set_at <= received);
        let holder = end.checked_sub(1).and_then(|last| holders.get(last)).and_then(|(_, holder)| *holder);
        ensure!(
            holder == Some(*replica),
            "{} sent {} {} at {received}, when the holder was {:?}",
            replica.name,
            request.verb,
            request.uri,
            holder.map(|holder| &holder.name)
        );
        summary.counts(replica.implementation).writes += 1;
    }
    for implementation in [Implementation::Upstream, Implementation::Cofferdam] {
        let counts = summary.counts(implementation);
        ensure!(
            counts.terms >= MIN_TERMS && counts.writes > 0,
            "{}: {counts:?}: expected at least {MIN_TERMS} terms with writes",
            implementation.as_str()
        );
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{audit, suites::sidecars::slot::PROVISIONER};

    /// An event of the audit log: replica, verb, resource, seconds of the request and of the response,
    /// holder.
    type Row = (usize, &'static str, &'static str, u32, u32, &'static str);

    fn replicas() -> [Replica; 2] {
        [Implementation::Upstream, Implementation::Cofferdam].map(|it| Replica::new(PROVISIONER, it, 0))
    }

    fn check_rows(rows: &[Row]) -> Result<Summary> {
        check_rows_with_codes(&rows.iter().map(|row| (*row, 200)).collect::<Vec<_>>())
    }

    fn check_rows_with_codes(rows: &[(Row, u16)]) -> Result<Summary> {
        let replicas = replicas();
        let lines: Vec<String> = rows
            .iter()
            .map(|((replica, verb, resource, received, completed, holder), code)| {
                let time = |second: &u32| format!("2026-01-01T00:00:{second:02}.000000Z");
                serde_json::json!({
                    "verb": verb,
                    "requestURI": "/uri",
                    "user": { "username": replicas[*replica].user() },
                    "objectRef": { "resource": resource, "name": "lease" },
                    "responseStatus": { "code": code },
                    "requestObject": { "spec": { "holderIdentity": holder } },
                    "requestReceivedTimestamp": time(received),
                    "stageTimestamp": time(completed),
                })
                .to_string()
            })
            .collect();
        check(&audit::parse(&lines.join("\n"))?, "lease", &replicas.each_ref())
    }

    const TERMS: [Row; 8] = [
        (0, "create", "leases", 0, 1, "upstream-0"),
        (0, "patch", "persistentvolumes", 1, 2, ""),
        (1, "update", "leases", 10, 11, "cofferdam-0-1f"),
        (1, "patch", "persistentvolumes", 12, 12, ""),
        (1, "update", "leases", 14, 15, ""),
        (0, "update", "leases", 20, 21, "upstream-0"),
        (1, "update", "leases", 30, 31, "cofferdam-0-2f"),
        (1, "create", "events", 1, 2, ""),
    ];

    #[test]
    fn writes_of_holders_are_counted() {
        let summary = check_rows(&TERMS).unwrap();
        let [upstream, cofferdam] = [1, 1].map(|writes| Counts { terms: 2, writes });
        assert_eq!(summary, Summary { upstream, cofferdam, lease_writes_in_doubt: 0 });
    }

    #[test]
    fn the_order_of_the_lines_is_not_that_of_the_terms() {
        let mut rows = TERMS;
        rows.reverse();
        assert_eq!(check_rows(&rows).unwrap(), check_rows(&TERMS).unwrap());
    }

    #[test]
    fn failed_writes_of_the_lease_start_no_term_and_are_counted_if_in_doubt() {
        let lease_write = (1, "update", "leases", 2, 3, "cofferdam-0-1f");
        for (code, lease_writes_in_doubt) in [(409, 0), (504, 1)] {
            let mut rows: Vec<_> = TERMS.iter().map(|row| (*row, 200)).collect();
            rows.push((lease_write, code));
            let expected = Summary { lease_writes_in_doubt, ..check_rows(&TERMS).unwrap() };
            assert_eq!(check_rows_with_codes(&rows).unwrap(), expected);
        }
    }

    #[test]
    fn writes_without_the_lease_are_rejected() {
        for (row, expected) in [
            (
                (0, "patch", "persistentvolumes", 11, 12, ""),
                "when the holder was Some(\"csi-provisioner-coff",
            ),
            (
                (1, "patch", "persistentvolumes", 10, 12, ""),
                "when the holder was Some(\"csi-provisioner-upst",
            ),
            ((1, "patch", "persistentvolumes", 16, 17, ""), "when the holder was None"),
            ((1, "update", "leases", 40, 41, "upstream-0"), "makes \"upstream-0\" the holder"),
        ] {
            let rows = [&TERMS[..], &[row]].concat();
            let error = check_rows(&rows).unwrap_err().to_string();
            assert!(error.contains(expected), "{row:?}: {error}");
        }
        let error = check_rows(&TERMS[..6]).unwrap_err().to_string();
        assert!(error.contains("expected at least 2 terms"), "{error}");
    }
}
