//! Each implementation alone: what it writes to snapshots and contents, and the reasons of its events.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::{Api, Client, api::ListParams};
use serde_json::json;

use super::{CLAIMS, SnapshotControllers, TIMEOUT};
use crate::{
    implementation::Implementation,
    retry,
    snapshots::{Snapshots, text_at},
    wait::until,
};

/// Number of snapshots that one implementation takes alone.
const SNAPSHOTS: usize = 5;
/// Name of these snapshots in reasons, without their numbers.
const TAKEN: &str = "snapshot-";
/// The last event of a snapshot that is taken.
const LAST_REASON: &str = "SnapshotReady";
/// Snapshots that cannot be taken. The name says what is missing.
const FAILING: [&str; 3] = ["class-missing", "claim-missing", "content-missing"];
/// Reasons of the warnings that the upstream programs emit if another program has changed an object before
/// their write. Cofferdam emits none then: `docs/deviations.md`.
const UPSTREAM_CONFLICTS: [&str; 6] = [
    "ErrorPVCFinalizer",
    "SnapshotContentCheckandUpdateFailed",
    "SnapshotContentCreationFailed",
    "SnapshotCreationFailed",
    "SnapshotFinalizerError",
    "SnapshotStatusUpdateFailed",
];

/// Reasons of the events of each object: the snapshot's name without its number, and the kind.
type Reasons = BTreeMap<(String, String), BTreeSet<String>>;

/// Takes snapshots by the upstream programs alone, then by Cofferdam alone, and deletes them. Some cannot be
/// taken. Returns the only form of those by upstream, see [`Snapshots::forms`].
///
/// # Errors
/// If Cofferdam's have another form, or events with other reasons.
pub(super) async fn take(
    snapshots: &Snapshots,
    controllers: &mut SnapshotControllers<'_>,
    client: &Client,
) -> Result<String> {
    let (form, upstream) = take_alone(snapshots, Implementation::Upstream, None, controllers, client)
        .await
        .context("upstream")?;
    let (_, cofferdam) = take_alone(snapshots, Implementation::Cofferdam, Some(&form), controllers, client)
        .await
        .context("Cofferdam")?;
    let differences = differences(&upstream, &cofferdam);
    ensure!(differences.is_empty(), "the reasons of events differ:\n  {}", differences.join("\n  "));
    let reasons: BTreeSet<&str> = cofferdam.values().flatten().map(String::as_str).collect();
    controllers.run.add_note(&format!(
        "{SNAPSHOTS} snapshots and {} that cannot be taken: Cofferdam's events have upstream's reasons: {}",
        FAILING.len(),
        reasons.into_iter().collect::<Vec<_>>().join(", ")
    ))?;
    Ok(form)
}

/// Takes and deletes snapshots by the programs of one implementation. Returns their only form, which is
/// `expected`, and the reasons of their events.
async fn take_alone(
    snapshots: &Snapshots,
    implementation: Implementation,
    expected: Option<&str>,
    controllers: &mut SnapshotControllers<'_>,
    client: &Client,
) -> Result<(String, Reasons)> {
    controllers.start(implementation).await?;
    snapshots.create(0..SNAPSHOTS, CLAIMS).await?;
    snapshots.wait_ready(SNAPSHOTS, TIMEOUT).await?;
    let mut form = String::new();
    until("the snapshots of one implementation have one form", TIMEOUT, async || {
        let forms = snapshots.forms().await?;
        ensure!(forms.len() == 1, "they have {forms:#?}");
        form = forms.into_keys().next().context("no form")?;
        // The last annotation is removed after a snapshot is ready.
        ensure!(expected.is_none_or(|expected| form == expected), "it is {form}: expected {expected:?}");
        Ok(())
    })
    .await?;

    let claim = json!({ "persistentVolumeClaimName": "claim-0" });
    let no_claim = json!({ "persistentVolumeClaimName": "missing" });
    let no_content = json!({ "volumeSnapshotContentName": "missing" });
    let [class_missing, claim_missing, content_missing] = FAILING;
    let missing_class = json!({ "volumeSnapshotClassName": "missing", "source": claim });
    snapshots.create_with(class_missing, missing_class).await?;
    let class = snapshots.class();
    snapshots
        .create_with(claim_missing, json!({ "volumeSnapshotClassName": class, "source": no_claim }))
        .await?;
    snapshots.create_with(content_missing, json!({ "source": no_content })).await?;
    let names_by_uid = snapshots
        .list()
        .await?
        .into_iter()
        .map(|(name, snapshot)| (text_at(&snapshot, "/metadata/uid").to_owned(), name))
        .collect();
    until("each snapshot has its events", TIMEOUT, async || {
        ensure_complete(&reasons(client, &names_by_uid).await?)
    })
    .await?;

    for name in FAILING {
        snapshots.delete_named(name).await?;
    }
    snapshots.delete(0..SNAPSHOTS).await?;
    snapshots.wait_remaining(0, TIMEOUT).await?;
    controllers.stop().await?;
    Ok((form, reasons(client, &names_by_uid).await?))
}

/// The reasons that only one side has, except those of upstream's conflicts.
fn differences(upstream: &Reasons, cofferdam: &Reasons) -> Vec<String> {
    let none = BTreeSet::new();
    let mut found = Vec::new();
    for object in upstream.keys().chain(cofferdam.keys()).collect::<BTreeSet<_>>() {
        let [upstream, cofferdam] = [upstream, cofferdam].map(|reasons| reasons.get(object).unwrap_or(&none));
        let (snapshot, kind) = object;
        let only = |side: &str, reason: &String| format!("{snapshot}, {kind}: only {side} emits {reason}");
        let missing = upstream.difference(cofferdam);
        let missing = missing.filter(|reason| !UPSTREAM_CONFLICTS.contains(&reason.as_str()));
        found.extend(missing.map(|reason| only("upstream", reason)));
        found.extend(cofferdam.difference(upstream).map(|reason| only("Cofferdam", reason)));
    }
    found
}

/// Fails if a snapshot lacks the event of its end: ready, or not taken.
fn ensure_complete(reasons: &Reasons) -> Result<()> {
    let of = |name: &str| reasons.get(&(name.to_owned(), "VolumeSnapshot".to_owned()));
    ensure!(of(TAKEN).is_some_and(|found| found.contains(LAST_REASON)), "no {LAST_REASON}: {reasons:?}");
    for name in FAILING {
        ensure!(of(name).is_some(), "no event of {name}: {reasons:?}");
    }
    Ok(())
}

/// The reasons of the events of these snapshots and of their contents. Earlier snapshots of the same names
/// have other UIDs.
async fn reasons(client: &Client, names_by_uid: &BTreeMap<String, String>) -> Result<Reasons> {
    let events: Api<Event> = Api::all(client.clone());
    let mut reasons = Reasons::new();
    for event in retry::request(async |_| events.list(&ListParams::default()).await).await?.items {
        let object = event.involved_object;
        let uid = match object.kind.as_deref() {
            Some("VolumeSnapshot") => object.uid.as_deref(),
            // The name of a content contains the UID of its snapshot.
            Some("VolumeSnapshotContent") => {
                object.name.as_deref().and_then(|name| name.strip_prefix("snapcontent-"))
            }
            _ => None,
        };
        let name = uid.and_then(|uid| names_by_uid.get(uid));
        let (Some(name), Some(kind), Some(reason)) = (name, object.kind, event.reason) else { continue };
        let name = name.trim_end_matches(|digit: char| digit.is_ascii_digit()).to_owned();
        reasons.entry((name, kind)).or_default().insert(reason);
    }
    Ok(reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(rows: &[(&str, &str)]) -> Reasons {
        let mut reasons = Reasons::new();
        for (name, reason) in rows {
            let key = ((*name).to_owned(), "VolumeSnapshot".to_owned());
            reasons.entry(key).or_default().insert((*reason).to_owned());
        }
        reasons
    }

    #[test]
    fn reasons_of_one_side_are_differences_except_conflicts_of_upstream() {
        let upstream = reasons(&[(TAKEN, LAST_REASON), (TAKEN, "SnapshotFinalizerError")]);
        assert_eq!(differences(&upstream, &reasons(&[(TAKEN, LAST_REASON)])), [""; 0]);
        assert_eq!(
            differences(&reasons(&[(TAKEN, LAST_REASON), ("claim-missing", "A")]), &upstream),
            [
                "claim-missing, VolumeSnapshot: only upstream emits A",
                "snapshot-, VolumeSnapshot: only Cofferdam emits SnapshotFinalizerError"
            ]
        );
    }

    #[test]
    fn events_are_complete_once_every_snapshot_has_one() {
        let mut rows = vec![(TAKEN, LAST_REASON)];
        rows.extend(FAILING.map(|name| (name, "Failed")));
        ensure_complete(&reasons(&rows)).unwrap();
        for missing in 0..rows.len() {
            let rows: Vec<_> =
                rows.iter().enumerate().filter(|(row, _)| *row != missing).map(|(_, row)| *row).collect();
            ensure_complete(&reasons(&rows)).unwrap_err();
        }
    }
}
