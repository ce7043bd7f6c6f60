//! What the errors of a run were like, and what it leaves. These cases come last.

use cofferdam_backend::{Backend as _, Call};
use cofferdam_domain::storage::{Ability, CreateVolume, ErrorKind, Finality, Secrets, StorageError};

use crate::{
    bench::{Bench, Origin},
    cases::volumes::sized,
    check::{Checked, done, done_or_refused, failed, holds, line, skipped},
};

/// Makes some calls that every driver refuses, so that there are errors to look at when few cases are run.
async fn provoke(bench: &Bench) {
    drop(bench.create(&CreateVolume { capabilities: Vec::new(), ..bench.request("provoked") }).await);
    drop(bench.create(&sized(&bench.request("provoked"), Some(u64::MAX), None)).await);
    drop(bench.validate(&bench.ghost(), std::slice::from_ref(&bench.options.capability)).await);
}

/// A driver that needs none for it is not wrong: then there is nothing to see.
pub(super) async fn without_secrets(bench: &Bench) -> Checked {
    use ErrorKind::{FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated};
    let request = bench.request("secretless");
    let call = || Call { secrets: Secrets::default(), ..bench.call() };
    let begin = || bench.begin_create(&bench.backend, call(), &request, &Origin::Empty);
    let answer = bench.settled("create", begin).await;
    bench.keep(&request, &Origin::Empty, &answer);
    let kinds = [FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated];
    match done_or_refused("a create without secrets", &answer, &kinds)? {
        true => skipped("the driver creates volumes without secrets"),
        false => Ok(()),
    }
}

fn first(bench: &Bench, expected: &str, bad: impl Fn(&StorageError) -> bool) -> Checked {
    match bench.noticed().into_iter().find(|(_, error)| bad(error)) {
        Some((method, error)) => failed(expected, format!("{method}: {}", line(&error))),
        None => Ok(()),
    }
}

pub(super) async fn have_a_message(bench: &Bench) -> Checked {
    provoke(bench).await;
    first(bench, "a message in every error", |error| error.message.trim().is_empty())
}

pub(super) async fn final_kinds_are_final(bench: &Bench) -> Checked {
    use ErrorKind::{
        AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, Unimplemented,
    };
    provoke(bench).await;
    let kinds = [AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, Unimplemented];
    first(bench, "a final error", |error| kinds.contains(&error.kind) && error.finality != Finality::Final)
}

pub(super) async fn no_defects(bench: &Bench) -> Checked {
    provoke(bench).await;
    first(bench, "no internal error in the whole run", |error| error.kind == ErrorKind::Internal)
}

pub(super) async fn nothing_is_left(bench: &Bench) -> Checked {
    let (_, last) = bench.volume("last").await?;
    done("delete", bench.delete(&last.handle).await)?;
    bench.tidy().await;
    let left = bench.left();
    holds(left.is_empty(), || "everything can be deleted".to_owned(), || left.join(", "))?;
    if bench.backend.abilities().contains(&Ability::Listing) {
        let listed: Vec<_> =
            bench.list_all(None).await?.into_iter().filter(|status| bench.is_ours(status)).collect();
        let handles = || listed.iter().map(|status| status.volume.handle.to_string()).collect::<Vec<_>>();
        let expected = || "no volume of this run in the listing".to_owned();
        holds(listed.is_empty(), expected, || handles().join(", "))?;
    }
    if bench.backend.abilities().contains(&Ability::Snapshots) {
        let mut listed = bench.list_snapshots(None, None).await?;
        listed.retain(|snapshot| bench.is_our_snapshot(&snapshot.handle));
        let handles = || listed.iter().map(|snapshot| snapshot.handle.to_string()).collect::<Vec<_>>();
        let expected = || "no snapshot of this run in the listing".to_owned();
        holds(listed.is_empty(), expected, || handles().join(", "))?;
    }
    let new: Vec<_> = bench.storage().difference(&bench.at_first).cloned().collect();
    holds(new.is_empty(), || "nothing new in the state and the pool".to_owned(), || new.join(", "))
}
