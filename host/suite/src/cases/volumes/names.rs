//! Names of volumes.

use std::collections::BTreeSet;

use cofferdam_domain::storage::{CreateVolume, ErrorKind};

use crate::{
    check::{CaseResult, expect_equal, expect_final_error, expect_success, expect_that, skip},
    context::SuiteContext,
};

/// CSI's limit of names, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 128;

/// Names of one byte, which have no room for the run's prefix. Other users of the storage are unlikely to
/// have volumes of these names: a create could return such a volume, and the cleanup would delete it.
const SHORT_NAMES: [&str; 7] = ["~", "^", "!", "=", "+", "@", "%"];

pub(super) async fn short(context: &SuiteContext) -> CaseResult {
    let index = usize::try_from(context.options.seed).unwrap_or_default() % SHORT_NAMES.len();
    let name = SHORT_NAMES.get(index).copied().unwrap_or("~");
    match context.create(&context.volume_request_named(name.to_owned())).await {
        Err(error) if error.kind == ErrorKind::AlreadyExists => {
            skip(format!("the storage has a volume {name:?} already"))
        }
        answer => expect_success("a volume with a name of one byte", answer).map(drop),
    }
}

pub(super) async fn long(context: &SuiteContext) -> CaseResult {
    let stem = context.unique_name("long");
    let filler = "n".repeat(MAX_NAME_BYTES.saturating_sub(stem.len() + 1));
    check_distinct(context, ["a", "b"].map(|last| format!("{stem}{filler}{last}"))).await
}

pub(super) async fn unicode(context: &SuiteContext) -> CaseResult {
    let names = ["größe", "容量", "🦀 and a space", "quo\"te's", "../up", "a/b", "%41"];
    check_distinct(context, names.map(|name| context.unique_name(name))).await
}

pub(super) async fn similar(context: &SuiteContext) -> CaseResult {
    let stem = context.unique_name("similar");
    check_distinct(context, ["a-b", "A-b", "a_b", "a.b", "a-b-", "a--b"].map(|end| format!("{stem}{end}")))
        .await
}

/// Creates a volume of each name, and repeats each create. Each name must yield a handle of its own.
async fn check_distinct<const N: usize>(context: &SuiteContext, names: [String; N]) -> CaseResult {
    let mut handles = BTreeSet::new();
    for name in names {
        let request = context.volume_request_named(name.clone());
        let volume = expect_success(&format!("a volume named {name:?}"), context.create(&request).await)?;
        let again = expect_success(&format!("{name:?} again"), context.create(&request).await)?;
        expect_equal("the same handle again", &volume.handle, &again.handle)?;
        expect_that(
            handles.insert(volume.handle.clone()),
            || format!("{name:?} is a volume of its own"),
            || format!("the handle {:?} of another name", volume.handle),
        )?;
    }
    Ok(())
}

pub(super) async fn bad(context: &SuiteContext) -> CaseResult {
    for name in [
        String::new(),
        "n".repeat(MAX_NAME_BYTES + 1),
        context.unique_name("line\nbreak"),
        context.unique_name("nul\0"),
    ] {
        let answer =
            context.create(&CreateVolume { owner: None, ..context.volume_request_named(name.clone()) }).await;
        let what = format!("a volume named {name:?}");
        expect_final_error(&what, &answer, &[ErrorKind::InvalidArgument])?;
    }
    Ok(())
}
