use cofferdam_apiserver::{ApiServer, Options};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{
    Client,
    api::{DeleteParams, PostParams},
};

use super::*;

fn api() -> Api<StorageClass> {
    Api::all(Client::new(ApiServer::new(Options::default()).service(), "default"))
}

fn class(name: &str) -> StorageClass {
    let mut class = StorageClass { provisioner: "a.example.com".to_owned(), ..StorageClass::default() };
    class.metadata.name = Some(name.to_owned());
    class
}

fn state(class: Option<&StorageClass>) -> String {
    if class.is_some() { "there".to_owned() } else { "absent".to_owned() }
}

fn exists(class: Option<&StorageClass>) -> bool {
    class.is_some()
}

const LIMIT: Duration = Duration::from_secs(300);

#[tokio::test(start_paused = true)]
async fn a_timeout_reports_the_actual_and_the_expected_state() {
    let expectation = Expectation { expected: "there", is_met: &exists, describe: &state, timeout: LIMIT };
    let error = wait_for(&api(), "fast", &expectation).await.unwrap_err();
    assert_eq!(error.to_string(), "StorageClass fast is absent after 5m: expected it to be there");
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_the_object_is_created_or_deleted() {
    let api = api();
    let expectation = Expectation { expected: "there", is_met: &exists, describe: &state, timeout: LIMIT };
    let (found, created) = tokio::join!(wait_for(&api, "fast", &expectation), async {
        api.create(&PostParams::default(), &class("slow")).await.unwrap();
        api.create(&PostParams::default(), &class("fast")).await.unwrap()
    });
    assert_eq!(found.unwrap().unwrap().metadata.uid, created.metadata.uid);

    let background = DeleteParams::background();
    let is_gone = |class: Option<&StorageClass>| class.is_none();
    let expectation = Expectation { expected: "gone", is_met: &is_gone, describe: &state, timeout: LIMIT };
    let (gone, deleted) = tokio::join!(wait_for(&api, "fast", &expectation), api.delete("fast", &background));
    deleted.unwrap();
    assert_eq!(gone.unwrap(), None);
}
