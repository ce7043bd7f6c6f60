//! Read-only calls: a repeated call returns the same result.

use cofferdam_backend::Backend as _;
use cofferdam_domain::storage::{Ability, CreateVolume, CreatedVolume, PageRequest, Snapshot};

use crate::{
    check::{CaseResult, expect_equal, expect_success},
    context::SuiteContext,
};

pub(super) async fn reads(context: &SuiteContext) -> CaseResult {
    let (request, volume) = context.new_volume("reread").await?;
    let snapshot = if context.backend.abilities().contains(&Ability::Snapshots) {
        Some(context.ready_snapshot("reread", &volume.handle).await?)
    } else {
        None
    };
    let first = read_all(context, &request, &volume, snapshot.as_ref()).await?;
    let second = read_all(context, &request, &volume, snapshot.as_ref()).await?;
    first.iter().zip(&second).try_for_each(|((what, first), (_, second))| expect_equal(what, first, second))
}

/// Everything that the driver reports about a volume and its snapshot, with labels.
async fn read_all(
    context: &SuiteContext,
    request: &CreateVolume,
    volume: &CreatedVolume,
    snapshot: Option<&Snapshot>,
) -> CaseResult<Vec<(&'static str, String)>> {
    let has_ability = |ability| context.backend.abilities().contains(&ability);
    let validation = expect_success("validate", context.validate(volume, &request.capabilities).await)?;
    let mut answers = vec![("the validation", format!("{validation:?}"))];
    if has_ability(Ability::Inspection) {
        let status = expect_success("the description", context.inspect(&volume.handle).await)?;
        answers.push(("the description", format!("{status:?}")));
    }
    if has_ability(Ability::Listing) {
        // Volumes that do not belong to this run may be created and deleted meanwhile.
        let mut listed = context.list_all(None).await?;
        listed.retain(|status| status.volume.handle == volume.handle);
        answers.push(("the listed volume", format!("{listed:?}")));
    }
    if let Some(snapshot) = snapshot {
        let found = expect_success("the snapshot", context.get_snapshot(&snapshot.handle).await)?;
        answers.push(("the snapshot", format!("{found:?}")));
        let source = Some(volume.handle.clone());
        let page = context.backend.list_snapshots(context.call(), source, PageRequest::default()).await;
        answers
            .push(("the snapshots of the volume", format!("{:?}", expect_success("the snapshots", page)?)));
    }
    Ok(answers)
}
