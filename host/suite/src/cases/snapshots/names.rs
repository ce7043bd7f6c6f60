//! Names of snapshots.

use cofferdam_domain::storage::{CreateSnapshot, ErrorKind};

use crate::{
    cases::volumes::names::MAX_NAME_BYTES,
    check::{CaseResult, expect_final_error, expect_success, expect_that},
    context::SuiteContext,
};

pub(super) async fn long(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("snapped").await?;
    let stem = context.unique_name("long");
    let filler = "n".repeat(MAX_NAME_BYTES.saturating_sub(stem.len() + 1));
    let create = async |last: &str| {
        let name = format!("{stem}{filler}{last}");
        let request = CreateSnapshot { name, ..context.snapshot_request("long", &volume.handle) };
        expect_success(
            "a snapshot with a name of 128 bytes",
            context.create_snapshot(&context.backend, &request).await,
        )
    };
    let (first, second) = (create("a").await?.handle, create("b").await?.handle);
    expect_that(first != second, || "two snapshots of two names".to_owned(), || format!("{first} for both"))
}

pub(super) async fn bad(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("snapped").await?;
    for name in [
        String::new(),
        "n".repeat(MAX_NAME_BYTES + 1),
        context.unique_name("line\nbreak"),
        context.unique_name("nul\0"),
    ] {
        let what = format!("a snapshot named {name:?}");
        let request = CreateSnapshot { name, ..context.snapshot_request("bad", &volume.handle) };
        expect_final_error(
            &what,
            &context.create_snapshot(&context.backend, &request).await,
            &[ErrorKind::InvalidArgument],
        )?;
    }
    Ok(())
}
