//! Misuse of the `state` import. The host's error is returned as the message of an `invalid-argument` error.

use cofferdam_guest::{
    Result, StorageError,
    bindings::cofferdam::storage::state::{self, Change, Precondition, Put},
};

fn put(key: &str, bytes: usize) -> Change {
    Change::Put(Put { key: key.to_owned(), value: vec![1; bytes], precondition: Precondition::Absent })
}

pub(crate) fn misuse_state(how: &str) -> Result<()> {
    let answer = match how {
        "state-key" => state::commit(&[put(&"k".repeat(10 << 10), 1)]).map(drop),
        "state-read-key" => state::get(&"k".repeat(10 << 10)).map(drop),
        "state-prefix" => state::scan(&"k".repeat(10 << 10), None, 1).map(drop),
        "state-no-key" => state::commit(&[put("", 1)]).map(drop),
        "state-value" => state::commit(&[put("k", (64 << 10) + 1)]).map(drop),
        "state-huge-value" => state::commit(&[put("k", 8 << 20)]).map(drop),
        "state-giant-value" => state::commit(&[put("k", 1 << 30)]).map(drop),
        "state-batch" => {
            state::commit(&(0..17).map(|number| put(&number.to_string(), 1)).collect::<Vec<_>>()).map(drop)
        }
        "state-none" => state::commit(&[]).map(drop),
        "state-twice" => state::commit(&[put("k", 1), put("k", 2)]).map(drop),
        "state-full" => (0..)
            .try_for_each(|number: u32| state::commit(&[put(&format!("full-{number}"), 64 << 10)]).map(drop)),
        _ => Ok(()),
    };
    answer.map_err(|error| StorageError::invalid_argument(format!("{error:?}")))
}
