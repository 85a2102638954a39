//! `--codec` of commands that serve.

use super::support::process::cenote;
use super::support::region::Region;

/// A wrong codec costs no region.
#[tokio::test]
async fn a_server_checks_its_codec_before_it_makes_a_region() {
    let region = Region::name_only();
    let serve = ["serve", "--port", "0", "--region", &region.name, "--region-size", "64MiB", "--codec"];
    cenote(serve.into_iter().chain(["qpack:0.5"])).fails(&["profile"]).await;
    cenote(serve.into_iter().chain(["qpack:0.5", "--profile", "/nowhere/p"])).fails(&["/nowhere/p"]).await;
    assert_eq!(region.files(), Vec::<std::path::PathBuf>::new());
}
