//! The end of a term: reads go on, and no write begins.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::{sync::Arc, time::Duration};

use cofferdam_cluster::{ApiError, leadership::Leadership};
use cofferdam_domain::{StorageClass, term::Term};
use common::{FaultyApi, api};
use serde_json::json;

#[tokio::test]
async fn a_write_begins_in_a_term_only() {
    let (terms, leadership) = Leadership::elected();
    let writer = FaultyApi::new(&api()).writer().with_permits(leadership);
    let create = async |name: &str| {
        let class = json!({"metadata": {"name": name}, "provisioner": "a.example"});
        writer.create::<StorageClass>(None, &class).await
    };
    let exists = async |name: &str| writer.get::<StorageClass>(&name.into()).await.unwrap().is_some();

    let error = create("before").await.unwrap_err();
    assert_eq!(error.to_string(), "StorageClass before is not written: this process does not lead");
    assert!(matches!(error, ApiError::TermEnded(_)) && !error.is_result_unknown());
    assert!(!exists("before").await, "reads need no term");

    terms.begin(Term::until(Duration::from_secs(1), Arc::new(|| Duration::ZERO)));
    create("during").await.unwrap();
    assert!(exists("during").await);

    terms.end();
    create("after").await.unwrap_err();
    assert!(!exists("after").await);
}

/// The permit is given before a request waits for a connection.
#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_a_connection_until_the_end_of_the_term_has_no_effect() {
    let (terms, leadership) = Leadership::elected();
    let wire = FaultyApi { delay: Duration::from_secs(20), ..FaultyApi::new(&api()) };
    let writer = wire.writer().with_permits(leadership);
    let class = json!({"metadata": {"name": "late"}, "provisioner": "a.example"});
    for is_ended in [true, false] {
        terms.begin(Term::until(Duration::from_secs(1), Arc::new(|| Duration::ZERO)));
        let end = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            if is_ended {
                terms.end();
            }
        };
        let (created, ()) = tokio::join!(writer.create::<StorageClass>(None, &class), end);
        assert_eq!(created.is_err(), is_ended, "{created:?}");
        let found = writer.get::<StorageClass>(&"late".into()).await.unwrap();
        assert_eq!(found.is_none(), is_ended);
    }
}
