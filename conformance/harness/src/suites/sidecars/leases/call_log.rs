//! The calls in the log of the Go driver.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::PathBuf,
    sync::Mutex,
};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use serde::Deserialize;

/// A call that the driver received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// The socket, which names the replica.
    pub(super) socket: String,
    /// The method and the volume, by name or by id.
    pub(super) subject: (String, String),
    pub(super) started: Timestamp,
    /// `None` if the call runs.
    pub(super) ended: Option<Timestamp>,
    /// True if its process ended or stopped while the call ran.
    pub(super) is_abandoned: bool,
}

/// The file to which the driver appends the starts and ends of calls.
pub(super) struct CallLog {
    path: PathBuf,
    /// Times at which the processes of these sockets ended or stopped.
    ends: Mutex<Vec<(String, Timestamp)>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    number: usize,
    is_end: bool,
    socket: String,
    method: String,
    volume: String,
    /// Nanoseconds since 1970.
    at: i128,
}

/// Methods that change a volume.
const METHODS: [&str; 2] = ["CreateVolume", "DeleteVolume"];

impl CallLog {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, ends: Mutex::default() }
    }

    /// The driver's flag.
    pub(super) fn flag(&self) -> String {
        format!("--call-log={}", self.path.display())
    }

    /// Records that the process of a socket has ended or stopped. Its calls may still run at the driver.
    pub(super) fn record_end_of_process(&self, socket: &str, at: Timestamp) {
        if let Ok(mut ends) = self.ends.lock() {
            ends.push((socket.to_owned(), at));
        }
    }

    /// The calls that change volumes, in the order of their starts.
    ///
    /// # Errors
    /// If the file cannot be read or decoded.
    pub(super) fn read(&self) -> Result<Vec<Call>> {
        let ends = self.ends.lock().map(|ends| ends.clone()).unwrap_or_default();
        parse(&fs::read_to_string(&self.path)?, &ends)
    }

    /// Number of calls in flight, by socket.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn in_flight(&self) -> Result<HashMap<String, usize>> {
        let mut counts = HashMap::new();
        for call in self.read()?.into_iter().filter(|call| call.ended.is_none()) {
            *counts.entry(call.socket).or_default() += 1;
        }
        Ok(counts)
    }
}

fn parse(text: &str, ends: &[(String, Timestamp)]) -> Result<Vec<Call>> {
    let mut calls = BTreeMap::new();
    // The last line may be incomplete.
    let complete = text.rfind('\n').map_or("", |end| text.get(..end).unwrap_or_default());
    for line in complete.lines() {
        let record: Record = serde_json::from_str(line).with_context(|| format!("line {line:?}"))?;
        let at = Timestamp::from_nanosecond(record.at)?;
        if !METHODS.contains(&record.method.as_str()) {
            continue;
        }
        if record.is_end {
            let call: &mut Call = calls.get_mut(&record.number).context("an end without a start")?;
            call.ended = Some(at);
        } else {
            let call = Call {
                socket: record.socket,
                subject: (record.method, record.volume),
                started: at,
                ended: None,
                is_abandoned: false,
            };
            calls.insert(record.number, call);
        }
    }
    let mut calls: Vec<Call> = calls.into_values().collect();
    for call in &mut calls {
        let ends_during = |at: &Timestamp| call.started <= *at && call.ended.is_none_or(|ended| ended >= *at);
        call.is_abandoned = ends.iter().any(|(socket, at)| *socket == call.socket && ends_during(at));
    }
    Ok(calls)
}

/// Checks that no call begins for a volume while another one is in flight, except one whose process ended or
/// stopped.
pub(super) fn ensure_no_overlap(calls: &[Call]) -> Result<()> {
    let mut last: HashMap<&str, &Call> = HashMap::new();
    for call in calls {
        let volume = call.subject.1.as_str();
        if let Some(earlier) = last.insert(volume, call) {
            let has_ended = earlier.ended.is_some_and(|ended| ended <= call.started);
            ensure!(has_ended || earlier.is_abandoned, "{call:?} begins during {earlier:?}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lines(records: &[(usize, bool, &str, i64)]) -> String {
        let line = |(number, is_end, socket, second): &(usize, bool, &str, i64)| {
            format!(
                r#"{{"number":{number},"isEnd":{is_end},"socket":"{socket}","method":"CreateVolume","volume":"v","at":{second}000000000}}"#
            ) + "\n"
        };
        records.iter().map(line).collect()
    }

    #[test]
    fn overlapping_calls_are_found_unless_the_first_one_is_abandoned() {
        let one_after_the_other =
            lines(&[(0, false, "a", 1), (0, true, "a", 2), (1, false, "b", 2), (1, true, "b", 3)]);
        ensure_no_overlap(&parse(&one_after_the_other, &[]).unwrap()).unwrap();
        let overlapping =
            lines(&[(0, false, "a", 1), (1, false, "b", 2), (0, true, "a", 3), (1, true, "b", 4)]);
        ensure_no_overlap(&parse(&overlapping, &[]).unwrap()).unwrap_err();
        for (socket, second, expected) in [("a", 2, true), ("a", 4, false), ("b", 2, false)] {
            let calls = parse(&overlapping, &[(socket.to_owned(), at(second))]).unwrap();
            assert_eq!(ensure_no_overlap(&calls).is_ok(), expected, "{socket} {second}");
        }
    }

    #[test]
    fn calls_without_an_end_are_in_flight_and_an_incomplete_line_is_ignored() {
        let text = lines(&[(0, false, "a", 1), (1, false, "b", 2), (0, true, "a", 3)]) + "{\"number\":";
        let calls = parse(&text, &[]).unwrap();
        assert_eq!(calls.iter().filter(|call| call.ended.is_none()).count(), 1);
    }
}
