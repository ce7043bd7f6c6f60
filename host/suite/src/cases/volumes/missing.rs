//! Missing and deleted volumes.

use cofferdam_domain::{VolumeHandle, storage::ErrorKind};

use super::with_capacity;
use crate::{
    check::{CaseResult, expect_final_error, expect_success, expect_that},
    context::SuiteContext,
};

pub(super) async fn delete_is_idempotent(context: &SuiteContext) -> CaseResult {
    let (_, volume) = context.new_volume("deleted-twice").await?;
    expect_success("delete", context.delete(&volume.handle).await)?;
    expect_success("the same delete again", context.delete(&volume.handle).await)?;
    let again = context.delete_with(&context.second_process(), &volume.handle).await;
    expect_success("the same delete at another process", again)
}

pub(super) async fn delete_unknown(context: &SuiteContext) -> CaseResult {
    let unused_name = context.unique_name("never-made");
    let handles = [
        unused_name.as_str(),
        "/",
        "../../etc/passwd",
        "größe 🦀",
        "line\nbreak",
        "00000000-0000-0000-0000-000000000000",
        &"h".repeat(128),
        &"h".repeat(10_000),
    ]
    .map(VolumeHandle::from);
    for handle in handles {
        let answer = context.delete(&handle).await;
        let short_handle: String = handle.as_str().chars().take(40).collect();
        expect_success(&format!("deleting the unknown handle {short_handle:?}"), answer)?;
    }
    Ok(())
}

pub(super) async fn delete_deletes(context: &SuiteContext) -> CaseResult {
    let (request, volume) = context.new_volume("gone").await?;
    expect_success("delete", context.delete(&volume.handle).await)?;
    let answer = context.validate(&volume, &request.capabilities).await;
    expect_final_error("validating a deleted volume", &answer, &[ErrorKind::NotFound])
}

pub(super) async fn create_after_delete(context: &SuiteContext) -> CaseResult {
    let (request, volume) = context.new_volume("reborn").await?;
    expect_success("delete", context.delete(&volume.handle).await)?;
    let size = volume.capacity.unwrap_or(context.options.size).saturating_mul(2);
    let recreated = expect_success(
        "a create with the name of a deleted volume and twice its size",
        context.create(&with_capacity(&request, Some(size), None)).await,
    )?;
    let fits = recreated.capacity.is_none_or(|bytes| bytes >= size);
    expect_that(
        fits,
        || format!("a new volume of {size} bytes"),
        || format!("{:?} bytes", recreated.capacity),
    )
}

pub(super) async fn validate_missing(context: &SuiteContext) -> CaseResult {
    let capability = std::slice::from_ref(&context.options.capability);
    let answer = context.validate(&context.nonexistent_volume(), capability).await;
    expect_final_error("validating a volume that does not exist", &answer, &[ErrorKind::NotFound])
}
