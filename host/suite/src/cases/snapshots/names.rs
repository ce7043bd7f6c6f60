//! What a snapshot may be called.

use cofferdam_domain::storage::{CreateSnapshot, ErrorKind};

use crate::{
    bench::Bench,
    cases::volumes::names::LONGEST,
    check::{Checked, done, holds, refused},
};

pub(super) async fn long(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("snapped").await?;
    let stem = bench.name("long");
    let filler = "n".repeat(LONGEST.saturating_sub(stem.len() + 1));
    let cut = async |last: &str| {
        let name = format!("{stem}{filler}{last}");
        let request = CreateSnapshot { name, ..bench.snapshot_request("long", &volume.handle) };
        done("a snapshot with a name of 128 bytes", bench.cut(&bench.backend, &request).await)
    };
    let (first, second) = (cut("a").await?.handle, cut("b").await?.handle);
    holds(first != second, || "two snapshots of two names".to_owned(), || format!("{first} for both"))
}

pub(super) async fn bad(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("snapped").await?;
    for name in [String::new(), "n".repeat(LONGEST + 1), bench.name("line\nbreak"), bench.name("nul\0")] {
        let what = format!("a snapshot named {name:?}");
        let request = CreateSnapshot { name, ..bench.snapshot_request("bad", &volume.handle) };
        refused(&what, &bench.cut(&bench.backend, &request).await, &[ErrorKind::InvalidArgument])?;
    }
    Ok(())
}
