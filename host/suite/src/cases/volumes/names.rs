//! What a volume may be called.

use std::collections::BTreeSet;

use cofferdam_domain::storage::{CreateVolume, ErrorKind};

use crate::{
    bench::Bench,
    check::{Checked, done, holds, refused, same, skipped},
};

/// CSI's limit for names, in bytes.
pub(crate) const LONGEST: usize = 128;

/// Names of one byte that nobody gives to what is dear to them: what has it is deleted in the end.
const SHORT: [&str; 7] = ["~", "^", "!", "=", "+", "@", "%"];

pub(super) async fn short(bench: &Bench) -> Checked {
    let place = usize::try_from(bench.options.seed).unwrap_or_default() % SHORT.len();
    let name = SHORT.get(place).copied().unwrap_or("~");
    match bench.create(&bench.named(name.to_owned())).await {
        Err(error) if error.kind == ErrorKind::AlreadyExists => {
            skipped(format!("the storage has a volume {name:?} already"))
        }
        answer => done("a volume with a name of one byte", answer).map(drop),
    }
}

pub(super) async fn long(bench: &Bench) -> Checked {
    let stem = bench.name("long");
    let filler = "n".repeat(LONGEST.saturating_sub(stem.len() + 1));
    distinct(bench, ["a", "b"].map(|last| format!("{stem}{filler}{last}"))).await
}

pub(super) async fn unicode(bench: &Bench) -> Checked {
    let names = ["größe", "容量", "🦀 and a space", "quo\"te's", "../up", "a/b", "%41"];
    distinct(bench, names.map(|name| bench.name(name))).await
}

pub(super) async fn similar(bench: &Bench) -> Checked {
    let stem = bench.name("similar");
    distinct(bench, ["a-b", "A-b", "a_b", "a.b", "a-b-", "a--b"].map(|end| format!("{stem}{end}"))).await
}

/// Creates a volume of each name, and finds it again.
async fn distinct<const N: usize>(bench: &Bench, names: [String; N]) -> Checked {
    let mut handles = BTreeSet::new();
    for name in names {
        let request = bench.named(name.clone());
        let volume = done(&format!("a volume named {name:?}"), bench.create(&request).await)?;
        let again = done(&format!("{name:?} again"), bench.create(&request).await)?;
        same("the same handle again", &volume.handle, &again.handle)?;
        holds(
            handles.insert(volume.handle.clone()),
            || format!("{name:?} is a volume of its own"),
            || format!("the handle {:?} of another name", volume.handle),
        )?;
    }
    Ok(())
}

pub(super) async fn bad(bench: &Bench) -> Checked {
    for name in [String::new(), "n".repeat(LONGEST + 1), bench.name("line\nbreak"), bench.name("nul\0")] {
        let answer = bench.create(&CreateVolume { owner: None, ..bench.named(name.clone()) }).await;
        let what = format!("a volume named {name:?}");
        refused(&what, &answer, &[ErrorKind::InvalidArgument])?;
    }
    Ok(())
}
