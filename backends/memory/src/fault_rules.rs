//! Rules of injected faults and latency, as the settings write them.

use std::{collections::BTreeMap, time::Duration};

use cofferdam_guest::{ErrorKind, Finality};

use crate::values::{InvalidValue, Parsed, parse_number, split_list};

/// The methods that support faults and latency.
const METHODS: [&str; 19] = [
    "create",
    "delete",
    "validate",
    "create-from-volume",
    "create-from-snapshot",
    "publish",
    "unpublish",
    "expand",
    "modify",
    "create-snapshot",
    "delete-snapshot",
    "get-snapshot",
    "list-snapshots",
    "create-group-snapshot",
    "delete-group-snapshot",
    "get-group-snapshot",
    "list",
    "get",
    "available",
];
/// The error kinds by their names in the contract.
pub(crate) const KINDS: [(&str, ErrorKind); 16] = [
    ("invalid-argument", ErrorKind::InvalidArgument),
    ("not-found", ErrorKind::NotFound),
    ("already-exists", ErrorKind::AlreadyExists),
    ("permission-denied", ErrorKind::PermissionDenied),
    ("unauthenticated", ErrorKind::Unauthenticated),
    ("resource-exhausted", ErrorKind::ResourceExhausted),
    ("failed-precondition", ErrorKind::FailedPrecondition),
    ("aborted", ErrorKind::Aborted),
    ("out-of-range", ErrorKind::OutOfRange),
    ("unimplemented", ErrorKind::Unimplemented),
    ("internal", ErrorKind::Internal),
    ("unavailable", ErrorKind::Unavailable),
    ("deadline-exceeded", ErrorKind::DeadlineExceeded),
    ("cancelled", ErrorKind::Cancelled),
    ("data-loss", ErrorKind::DataLoss),
    ("unknown", ErrorKind::Unknown),
];
/// Maximum number of rules. It limits the counters that one call reads.
const MAX_RULES: usize = 32;
/// Maximum latency of one call in milliseconds: ten times the default deadline of a call.
const MAX_LATENCY: u64 = 600_000;
const EXPECTED: &str = "expected rules such as create:unavailable:3 (method:kind:times), with :after for a \
     failure after the effect, and with :final, :in-progress or :unknown for another finality than \
     the kind's";

/// Number of calls in which a rule injects its fault. The state stores one counter per limited rule. With a
/// state file, a restart of the process does not reset the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultCount {
    /// The first calls, up to this number.
    First(u32),
    /// Every call.
    Always,
}

/// A configured fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FaultRule {
    /// The rule as the setting spells it.
    pub(crate) text: String,
    pub(crate) method: &'static str,
    pub(crate) kind: ErrorKind,
    pub(crate) count: FaultCount,
    /// True if the call takes effect before it fails.
    pub(crate) after_effect: bool,
    pub(crate) finality: Finality,
}

fn known_method(name: &str) -> Option<&'static str> {
    METHODS.into_iter().find(|method| *method == name)
}

/// Parses the setting: comma-separated rules `method:kind:times[:after][:finality]`.
pub(crate) fn parse_rules(text: &str) -> Parsed<Vec<FaultRule>> {
    let rules = split_list(text).into_iter().map(FaultRule::parse).collect::<Parsed<Vec<_>>>()?;
    if rules.len() > MAX_RULES {
        return Err(InvalidValue(format!("expected at most {MAX_RULES} rules")));
    }
    let is_duplicate = |rule: &&FaultRule| rules.iter().filter(|other| other.text == rule.text).count() > 1;
    match rules.iter().find(is_duplicate) {
        Some(rule) => Err(InvalidValue(format!("expected {:?} only once", rule.text))),
        None => Ok(rules),
    }
}

impl FaultRule {
    fn parse(text: &str) -> Parsed<Self> {
        let mut parts = text.split(':');
        let (Some(name), Some(kind), Some(count)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(InvalidValue(EXPECTED.to_owned()));
        };
        let method = known_method(name)
            .ok_or_else(|| InvalidValue(format!("expected one of {} as the method", METHODS.join(", "))))?;
        let kind = KINDS.into_iter().find(|(known, _)| *known == kind).map(|(_, kind)| kind);
        let kind = kind.ok_or_else(|| {
            InvalidValue(format!("expected one of {} as the kind", KINDS.map(|(known, _)| known).join(", ")))
        })?;
        let count = if count == "always" {
            FaultCount::Always
        } else {
            FaultCount::First(parse_number(count, 1..=1_000_000)?)
        };
        let (mut after, mut finality) = (false, None);
        for part in parts {
            match (part, after, finality) {
                ("after", false, None) => after = true,
                ("final", false, None) => finality = Some(Finality::Final),
                ("in-progress", _, None) => finality = Some(Finality::InProgress),
                ("unknown", _, None) => finality = Some(Finality::Unknown),
                ("final", true, None) => {
                    return Err(InvalidValue(
                        "expected no final failure of a call that has taken effect".to_owned(),
                    ));
                }
                _ => return Err(InvalidValue(EXPECTED.to_owned())),
            }
        }
        // The call has taken effect, so the error must not be final, regardless of its kind.
        let default = if after { Finality::Unknown } else { kind.default_finality() };
        Ok(Self {
            text: text.to_owned(),
            method,
            kind,
            count,
            after_effect: after,
            finality: finality.unwrap_or(default),
        })
    }
}

/// Delay before a call starts: that of its method, or else that of all methods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latency {
    all: Option<Duration>,
    methods: BTreeMap<&'static str, Duration>,
}

impl Latency {
    /// Parses the setting: comma-separated milliseconds for all calls, or `method=milliseconds`.
    pub(crate) fn parse(text: &str) -> Parsed<Self> {
        const EXPECTED: &str =
            "expected milliseconds up to 600000 such as 20, or for single methods such as 5,create=50";
        let mut latency = Self::default();
        for part in split_list(text) {
            let (name, milliseconds) = part.split_once('=').unwrap_or(("", part));
            let milliseconds = parse_number(milliseconds.trim(), 0..=MAX_LATENCY)
                .map_err(|_| InvalidValue(EXPECTED.to_owned()))?;
            let pause = Duration::from_millis(milliseconds);
            let before = match (name.trim(), known_method(name.trim())) {
                ("", _) => latency.all.replace(pause),
                (_, Some(method)) => latency.methods.insert(method, pause),
                (_, None) => return Err(InvalidValue(EXPECTED.to_owned())),
            };
            if before.is_some() {
                return Err(InvalidValue(EXPECTED.to_owned()));
            }
        }
        Ok(latency)
    }

    /// The delay of a method; `None` without one.
    pub(crate) fn for_method(&self, method: &str) -> Option<Duration> {
        self.methods.get(method).copied().or(self.all).filter(|pause| !pause.is_zero())
    }
}
