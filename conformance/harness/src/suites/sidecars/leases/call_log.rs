//! The calls in the log of the Go driver.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use jiff::Timestamp;

use crate::suites::sidecars::call_log::{Record, RecordReader};

/// A call that the driver received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// The socket, which names the replica.
    pub(super) socket: String,
    pub(super) method: String,
    /// The volume, by name in CreateVolume and by id in other methods.
    volume: String,
    pub(super) started: Timestamp,
    /// `None` if the call runs.
    pub(super) ended: Option<Timestamp>,
}

/// Two calls for one volume, the second of which began while the first one was in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    pub(super) earlier: Call,
    pub(super) later: Call,
}

/// The file to which the driver appends the starts and ends of calls.
pub(super) struct CallLog {
    path: PathBuf,
    reader: RefCell<RecordReader>,
    calls: RefCell<Calls>,
}

/// The calls of the part of the file that was read.
#[derive(Default)]
struct Calls {
    /// Calls that change volumes, by their number in the order of their starts.
    calls: BTreeMap<usize, Call>,
    /// Numbers of the calls in flight.
    in_flight: BTreeSet<usize>,
    /// Times at which the processes of these sockets were killed or stopped.
    ends: Vec<(String, Timestamp)>,
    /// Numbers of the calls that a stopped process began when it continued.
    late: BTreeSet<usize>,
}

/// Methods that change a volume.
const METHODS: [&str; 4] =
    ["CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume"];

impl CallLog {
    pub(super) fn new(path: PathBuf) -> Self {
        let reader = RefCell::new(RecordReader::new(path.clone()));
        Self { path, reader, calls: RefCell::default() }
    }

    /// The driver's flag.
    pub(super) fn flag(&self) -> String {
        format!("--call-log={}", self.path.display())
    }

    /// Records that the process of a socket was killed or stopped. Its calls may still run at the driver.
    pub(super) fn record_end_of_process(&self, socket: &str, at: Timestamp) {
        self.calls.borrow_mut().ends.push((socket.to_owned(), at));
    }

    /// Number of calls that a socket received from `from` to `to`. They count as late: they may overlap with
    /// calls of other replicas.
    ///
    /// # Errors
    /// If the file cannot be read or decoded.
    pub(super) fn record_late(&self, socket: &str, from: Timestamp, to: Timestamp) -> Result<usize> {
        self.read_new()?;
        let mut calls = self.calls.borrow_mut();
        let late: Vec<usize> = calls
            .since(from)
            .filter(|(_, call)| call.socket == socket && call.started <= to)
            .map(|(number, _)| number)
            .collect();
        calls.late.extend(&late);
        Ok(late.len())
    }

    /// The first call that began after `after` and `is_expected`.
    ///
    /// # Errors
    /// As [`record_late`](Self::record_late), or if there is none.
    pub(super) fn first(&self, after: Timestamp, is_expected: impl Fn(&Call) -> bool) -> Result<Call> {
        self.read_new()?;
        let calls = self.calls.borrow();
        let found = calls.since(after).map(|(_, call)| call).filter(|call| is_expected(call)).last();
        found.cloned().with_context(|| format!("no such call after {after}"))
    }

    /// Number of calls in flight, by socket.
    ///
    /// # Errors
    /// As [`record_late`](Self::record_late).
    pub(super) fn in_flight(&self) -> Result<HashMap<String, usize>> {
        self.read_new()?;
        let calls = self.calls.borrow();
        let mut counts = HashMap::new();
        for call in calls.in_flight.iter().filter_map(|number| calls.calls.get(number)) {
            *counts.entry(call.socket.clone()).or_default() += 1;
        }
        Ok(counts)
    }

    /// Number of calls by method.
    pub(super) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for call in self.calls.borrow().calls.values() {
            *counts.entry(call.method.clone()).or_default() += 1;
        }
        counts
    }

    /// Calls that began for a volume while another one was in flight. Excludes calls that ran when their
    /// process was killed or stopped, and late ones. `names` has the names of volumes by id.
    ///
    /// # Errors
    /// As [`record_late`](Self::record_late).
    pub(super) fn overlaps(&self, names: &BTreeMap<String, String>) -> Result<Vec<Overlap>> {
        self.read_new()?;
        Ok(self.calls.borrow().overlaps(names))
    }

    fn read_new(&self) -> Result<()> {
        let new = self.reader.borrow_mut().read()?;
        self.calls.borrow_mut().extend(new)
    }
}

impl Calls {
    /// Adds the calls of records, and the ends of earlier calls.
    fn extend(&mut self, records: Vec<Record>) -> Result<()> {
        for record in records {
            let at = Timestamp::from_nanosecond(record.at)?;
            if !METHODS.contains(&record.method.as_str()) {
                continue;
            }
            if record.is_end {
                self.calls.get_mut(&record.number).context("an end without a start")?.ended = Some(at);
                self.in_flight.remove(&record.number);
            } else {
                let Record { number, socket, method, volume, .. } = record;
                self.calls.insert(number, Call { socket, method, volume, started: at, ended: None });
                self.in_flight.insert(number);
            }
        }
        Ok(())
    }

    /// The calls that began after `after`, the last one first.
    fn since(&self, after: Timestamp) -> impl Iterator<Item = (usize, &Call)> {
        let calls = self.calls.iter().rev().map(|(number, call)| (*number, call));
        calls.take_while(move |(_, call)| call.started > after)
    }

    fn overlaps(&self, names: &BTreeMap<String, String>) -> Vec<Overlap> {
        let mut last: HashMap<&str, (usize, &Call)> = HashMap::new();
        let mut overlaps = Vec::new();
        for (number, call) in &self.calls {
            let volume = names.get(&call.volume).unwrap_or(&call.volume);
            let Some((earlier_number, earlier)) = last.insert(volume, (*number, call)) else { continue };
            let has_ended = earlier.ended.is_some_and(|ended| ended <= call.started);
            let is_late = self.late.contains(&earlier_number) || self.late.contains(number);
            if !has_ended && !is_late && !self.is_abandoned(earlier) {
                overlaps.push(Overlap { earlier: earlier.clone(), later: call.clone() });
            }
        }
        overlaps
    }

    /// True if the process of a call was killed or stopped while the call ran.
    fn is_abandoned(&self, call: &Call) -> bool {
        let ran_at = |at: &Timestamp| call.started <= *at && call.ended.is_none_or(|ended| ended >= *at);
        self.ends.iter().any(|(socket, at)| *socket == call.socket && ran_at(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::sidecars::call_log::parse;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    type Row = (usize, bool, &'static str, &'static str, &'static str, i64);

    fn calls(rows: &[Row]) -> Calls {
        let line = |(number, is_end, socket, method, volume, second): &Row| {
            format!(
                r#"{{"number":{number},"isEnd":{is_end},"socket":"{socket}","method":"{method}","volume":"{volume}","at":{second}000000000}}"#
            ) + "\n"
        };
        let mut calls = Calls::default();
        calls.extend(parse(&rows.iter().map(line).collect::<String>()).unwrap()).unwrap();
        calls
    }

    #[test]
    fn overlapping_calls_are_found_unless_the_first_one_is_abandoned_or_one_is_late() {
        let none = BTreeMap::new();
        let one_after_the_other = calls(&[
            (0, false, "a", "CreateVolume", "v", 1),
            (0, true, "a", "CreateVolume", "v", 2),
            (1, false, "b", "CreateVolume", "v", 2),
            (1, true, "b", "CreateVolume", "v", 3),
        ]);
        assert_eq!(one_after_the_other.overlaps(&none), []);
        let overlapping = || {
            calls(&[
                (0, false, "a", "CreateVolume", "v", 1),
                (1, false, "b", "DeleteVolume", "id", 2),
                (0, true, "a", "CreateVolume", "v", 3),
                (1, true, "b", "DeleteVolume", "id", 4),
            ])
        };
        assert_eq!(overlapping().overlaps(&none), [], "two volumes");
        let names = BTreeMap::from([("id".to_owned(), "v".to_owned())]);
        assert_eq!(overlapping().overlaps(&names).len(), 1);
        for (socket, second, expected) in [("a", 2, 0), ("a", 4, 1), ("b", 2, 1)] {
            let mut calls = overlapping();
            calls.ends.push((socket.to_owned(), at(second)));
            assert_eq!(calls.overlaps(&names).len(), expected, "{socket} {second}");
        }
        for late in [0, 1] {
            let mut calls = overlapping();
            calls.late.insert(late);
            assert_eq!(calls.overlaps(&names), [], "{late}");
        }
    }

    #[test]
    fn an_incomplete_line_is_read_when_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let log = CallLog::new(directory.path().join("calls.jsonl"));
        let start =
            r#"{"number":0,"isEnd":false,"socket":"a","method":"CreateVolume","volume":"v","at":2000000000}"#;
        let (begin, _) = start.split_at(30);
        std::fs::write(&log.path, begin).unwrap();
        assert_eq!(log.in_flight().unwrap(), HashMap::new());
        std::fs::write(&log.path, format!("{start}\n")).unwrap();
        assert_eq!(log.in_flight().unwrap(), HashMap::from([("a".to_owned(), 1)]));
        assert_eq!(log.first(at(1), |_| true).unwrap().started, at(2));
        log.first(at(2), |_| true).unwrap_err();
        log.first(at(1), |call| call.socket == "b").unwrap_err();
        assert_eq!(log.record_late("a", at(1), at(1)).unwrap(), 0);
        assert_eq!(log.record_late("a", at(1), at(2)).unwrap(), 1);
    }
}
