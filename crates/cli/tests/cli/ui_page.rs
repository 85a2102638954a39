//! The page of `cenote ui` in a headless Chromium: what it shows, how keys walk it, and that it is legible.

use super::browser::{Browser, FAINT};
use super::support::client::greedy;
use super::support::process::{Server, cenote};
use super::support::region::Region;
use super::support::{tokens, until};
use serde_json::Value;

/// A model's name that would run as a script if the page took names for markup.
const HOSTILE: &str = "<script>window.ran=1</script><img src=x>";

/// WebDriver's names of keys.
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";
const END: &str = "\u{e010}";
const HOME: &str = "\u{e011}";
const LEFT: &str = "\u{e012}";
const RIGHT: &str = "\u{e014}";
const DOWN: &str = "\u{e015}";

/// Things to press or read without a name for a screen reader.
const NAMELESS: &str = r"
    const named = (node) => node.getAttribute('aria-label') || node.labels?.length || node.textContent.trim();
    return [...document.querySelectorAll('button, input, select, textarea, [tabindex=\'0\']')]
        .filter((node) => node.checkVisibility() && !named(node))
        .map((node) => node.outerHTML.slice(0, 90));
";

struct Page {
    region: Region,
    server: Server,
    ui: Server,
    browser: Browser,
}

impl Page {
    /// A region with two models and a live server, and the page of it. `None`: there is no browser.
    async fn open() -> Option<Self> {
        let Some(browser) = Browser::start().await else {
            cenote_base::testing::skip("the page of `cenote ui`: chromium and chromedriver are not installed");
            return None;
        };
        let region = Region::create("64MiB").await;
        let named = ["generate", "--model-name", HOSTILE, "--tenant-salt", "a", "--max-tokens", "2"];
        let prompt =
            ["--prompt", "A cenote is a natural pit that exposes the groundwater below.", "--region", &region.name];
        cenote(named.into_iter().chain(prompt)).ok().await;
        let server = Server::start(&["--region", &region.name]).await;
        server.client.complete(&greedy(&tokens(3, 200), 4)).await;
        until("the prompt's blocks", async || {
            (region.info().await["namespaces"][1]["blocks"].as_u64() >= Some(12)).then_some(())
        })
        .await;
        let flags = ["ui", "--region", &region.name, "--listen", "127.0.0.1:0", "--every", "0.2"];
        let ui = Server::of(cenote(flags), &[]).await;
        Some(Self { region, server, ui, browser })
    }

    async fn show(&self, width: u32, height: u32, scheme: &str, view: &str) {
        self.browser.look(width, height, scheme).await;
        // A page with a part in its address gives the first focus to that part.
        let part = if view == "overview" { String::new() } else { format!("#{view}") };
        self.browser.open("about:blank").await;
        self.browser.open(&format!("{}/{part}", self.ui.url)).await;
        self.browser.wait("a live page", "document.body.className === 'live'").await;
        self.browser.wait("its view", &format!("!document.getElementById('{view}').hidden")).await;
    }

    async fn text(&self, id: &str) -> String {
        let text = self.browser.run(&format!("return document.getElementById('{id}').innerText;")).await;
        text.as_str().expect("text").to_owned()
    }

    /// What has the focus: its words, or its label.
    async fn focused(&self) -> String {
        let script = "const at = document.activeElement; \
                      return at.getAttribute('aria-label') || at.id || at.textContent.trim() || at.tagName;";
        self.browser.run(script).await.as_str().expect("text").to_owned()
    }

    async fn expect_quiet_console(&self) {
        let said = self.browser.console().await;
        assert!(said.is_empty(), "{said:?}");
    }

    async fn stop(self) {
        self.browser.stop().await;
        self.ui.stop().await;
        self.server.stop().await;
    }
}

fn none() -> Value {
    Value::Array(Vec::new())
}

#[tokio::test]
async fn the_page_is_legible_on_phones_and_wide_screens() {
    let Some(page) = Page::open().await else { return };
    for (width, height) in [(390, 844), (1280, 800), (1680, 1050)] {
        for scheme in ["light", "dark"] {
            for (view, ready) in [
                ("overview", "document.querySelectorAll('#charts .chart').length === 5"),
                ("map", "document.querySelectorAll('#cells .cell:not(.free)').length > 1"),
                ("prompt", "document.querySelectorAll('#model option').length === 3"),
                ("tables", "document.querySelectorAll('#table-body tr').length === 2"),
            ] {
                page.show(width, height, scheme, view).await;
                page.browser.wait(view, ready).await;
                let what = format!("{view} at {width} in {scheme}");
                let wider = page.browser.run("return document.documentElement.scrollWidth - innerWidth;").await;
                assert!(wider.as_i64() <= Some(0), "{what}: {wider} pixels too wide");
                assert_eq!(page.browser.run(FAINT).await, none(), "{what}");
                assert_eq!(page.browser.run(NAMELESS).await, none(), "{what}");
                page.browser.keep_picture(&format!("{view}-{width}-{scheme}")).await;
            }
        }
    }
    page.expect_quiet_console().await;
    page.stop().await;
}

#[tokio::test]
async fn names_of_a_region_are_text() {
    let Some(page) = Page::open().await else { return };
    page.show(1280, 800, "light", "tables").await;
    page.browser.wait("the models", "document.querySelectorAll('#table-body tr').length === 2").await;
    assert!(page.text("table-body").await.contains(HOSTILE), "it is shown as it is");
    page.show(1280, 800, "light", "map").await;
    page.browser.run("document.querySelector('input[value=model]').click();").await;
    // Its block shares a chunk with those of the other model, of which there are more.
    page.browser.run("document.querySelectorAll('#cells .cell')[1].click();").await;
    page.browser
        .wait("the chunk", &format!("document.getElementById('cell-facts').innerText.includes('{HOSTILE}')"))
        .await;
    assert!(page.text("map-legend").await.contains("demo"));
    let of_page = "return [window.ran ?? null, document.scripts.length, document.images.length];";
    assert_eq!(page.browser.run(of_page).await, serde_json::json!([null, 1, 0]));
    page.expect_quiet_console().await;
    page.stop().await;
}

#[tokio::test]
async fn keys_reach_all_of_the_page() {
    let Some(page) = Page::open().await else { return };
    let browser = &page.browser;
    page.show(1280, 800, "light", "overview").await;
    browser.wait("charts", "document.querySelectorAll('#charts .chart').length === 5").await;
    browser.press(TAB).await;
    assert_eq!(page.focused().await, "Skip to the facts");
    browser.press(TAB).await;
    assert_eq!(page.focused().await, "tab-overview");
    browser.press(TAB).await;
    assert!(page.focused().await.starts_with("Fill, now: chunks taken "), "{}", page.focused().await);
    browser.wait("two points", "points.length > 2").await;
    browser.press(&[LEFT, LEFT].concat()).await;
    assert!(page.focused().await.starts_with("Fill, at "), "{}", page.focused().await);

    // The map.
    browser.run("document.getElementById('tab-overview').focus();").await;
    browser.press(RIGHT).await;
    browser.wait("cells", "document.querySelectorAll('#cells .cell').length > 20").await;
    assert_eq!(page.focused().await, "tab-map");
    browser.press(TAB).await;
    browser.press(RIGHT).await;
    assert_eq!(browser.run("return document.activeElement.value;").await, "age");
    browser.press(TAB).await;
    assert!(page.focused().await.starts_with("Chunk 0: host 0, slots in use "), "{}", page.focused().await);
    browser.press(&[RIGHT, RIGHT].concat()).await;
    assert!(page.focused().await.starts_with("Chunk 2: "), "{}", page.focused().await);
    assert!(page.text("tip").await.starts_with("Chunk 2"), "{}", page.text("tip").await);
    assert_eq!(page.text("cell-title").await, "Chunk 2");
    browser.press(DOWN).await;
    let below = page.focused().await;
    assert!(!below.starts_with("Chunk 2: ") && !below.starts_with("Chunk 3: "), "{below}");
    browser.press(END).await;
    let last = browser.run("return region.chunks - 1;").await;
    assert!(page.focused().await.starts_with(&format!("Chunk {last}: ")), "{}", page.focused().await);
    browser.press(HOME).await;
    assert!(page.focused().await.starts_with("Chunk 0: "));
    // A new look leaves the focus where it is.
    let looks = browser.run("return look.time;").await;
    browser.wait("another look", &format!("look.time > {looks} + 0.3")).await;
    assert!(page.focused().await.starts_with("Chunk 0: "));

    // A prompt.
    browser.run("document.getElementById('tab-map').focus();").await;
    browser.press(RIGHT).await;
    browser.wait("models", "document.querySelectorAll('#model option').length === 3").await;
    browser.press(&[TAB, TAB].concat()).await;
    assert_eq!(page.focused().await, "given");
    // Six blocks are there, and the two after them are of another prompt.
    let prompt = [tokens(3, 96), tokens(9, 32)].concat();
    let text: Vec<String> = prompt.iter().map(ToString::to_string).collect();
    browser.run(&format!("document.getElementById('given').value = '{}';", text.join(" "))).await;
    browser.press(" ").await;
    browser.press(&[TAB, TAB, TAB, TAB].concat()).await;
    assert_eq!(page.focused().await, "ask-button");
    browser.press(ENTER).await;
    browser.wait("the answer", "document.querySelectorAll('#blocks .cell').length === 8").await;
    let summary = page.text("answer-words").await;
    assert!(summary.starts_with("the first 6 of 8 blocks are here; block 6"), "{summary}");
    browser.press(TAB).await;
    assert_eq!(page.focused().await, "Block 0: here, on host 0");
    browser.press(END).await;
    assert_eq!(page.focused().await, "Block 7: not here, not seen");
    assert!(page.text("block-facts").await.contains("never seen"), "{}", page.text("block-facts").await);
    for (width, scheme) in [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")] {
        browser.look(width, 844, scheme).await;
        browser.keep_picture(&format!("answer-{width}-{scheme}")).await;
        assert_eq!(browser.run(FAINT).await, none(), "the answer at {width} in {scheme}");
    }
    browser.look(1280, 800, "light").await;
    browser.run("const given = document.getElementById('given'); given.focus(); given.select();").await;
    browser.press("1 two").await;
    browser.run("document.getElementById('ask-button').focus();").await;
    browser.press(ENTER).await;
    browser
        .wait("the refusal", "document.getElementById('answer-words').innerText.includes('`two` is no token')")
        .await;

    // Other sizes.
    browser.run("document.getElementById('tab-prompt').focus();").await;
    browser.press(RIGHT).await;
    browser.press(TAB).await;
    assert_eq!(page.focused().await, "whatif-button");
    browser.press(ENTER).await;
    browser.wait("a row for each size and policy", "document.querySelectorAll('#whatif-rows tr').length === 16").await;
    let label = browser.run("return document.getElementById('whatif-plot').getAttribute('aria-label');").await;
    assert!(label.as_str().is_some_and(|label| label.starts_with("Hit rate by size: lru ")), "{label}");
    for (width, scheme) in [(390, "dark"), (1280, "light")] {
        browser.look(width, 844, scheme).await;
        browser.keep_picture(&format!("whatif-{width}-{scheme}")).await;
        assert_eq!(browser.run(FAINT).await, none(), "other sizes at {width} in {scheme}");
    }

    // Tables: filter and order.
    browser.run("document.getElementById('tab-whatif').focus();").await;
    browser.press(RIGHT).await;
    browser.press(TAB).await;
    assert_eq!(page.focused().await, "table-models");
    browser.press(TAB).await;
    assert_eq!(page.focused().await, "filter");
    browser.press("DEM").await;
    browser.wait("one row", "document.querySelectorAll('#table-body tr').length === 1").await;
    assert_eq!(page.text("count").await, "1 of 2 rows");
    browser.run("const filter = document.getElementById('filter'); filter.value = ''; filter.dispatchEvent(new Event('input'));").await;
    browser.press(&[TAB, TAB, TAB, TAB, TAB].concat()).await;
    assert_eq!(page.focused().await, "blocks");
    let column =
        "return [...document.querySelectorAll('#table-body td:nth-child(4)')].map((cell) => Number(cell.textContent));";
    browser.press(ENTER).await;
    let falling = browser.run(column).await;
    browser.press(ENTER).await;
    let rising = browser.run(column).await;
    let numbers = |list: &Value| list.as_array().expect("a list").iter().filter_map(Value::as_u64).collect::<Vec<_>>();
    assert!(numbers(&falling).is_sorted_by(|left, right| left > right), "{falling}");
    assert!(numbers(&rising).is_sorted_by(|left, right| left < right), "{rising}");
    // Chromium itself tells of the question that was refused, and of nothing else.
    let said = browser.console().await;
    let [refused] = &said[..] else { panic!("{said:?}") };
    let words = refused["message"].as_str().expect("text");
    assert!(words.contains("/explain") && words.contains("422"), "{words}");
    page.stop().await;
}

#[tokio::test]
async fn the_last_facts_stay_when_region_or_server_are_gone() {
    let Some(page) = Page::open().await else { return };
    page.show(1280, 800, "light", "overview").await;
    page.browser.wait("facts", "document.getElementById('tiles').innerText.includes('Processes')").await;
    let Page { region, server, ui, browser } = page;
    server.stop().await;
    browser
        .wait(
            "a region without processes",
            "document.getElementById('tiles').innerText.includes('no process has it open')",
        )
        .await;
    assert_eq!(browser.run("return document.body.className;").await, "live", "a dead pool is shown as any other");
    let shown = "document.getElementById('notice').checkVisibility() && document.getElementById('notice').innerText";
    cenote(["pool", "destroy", "--region", &region.name]).ok().await;
    browser.wait("the region's end", "document.body.className === 'stale'").await;
    let words = browser.run(&format!("return {shown};")).await;
    let words = words.as_str().expect("a notice");
    assert!(words.contains("The region cannot be read") && words.contains("no such region"), "{words}");
    assert!(words.contains("Below are the facts of"), "{words}");
    assert_eq!(browser.run("return getComputedStyle(document.querySelector('.facts')).filter;").await, "grayscale(1)");
    for (width, scheme) in [(390, "light"), (1280, "dark")] {
        browser.look(width, 844, scheme).await;
        browser.keep_picture(&format!("gone-{width}-{scheme}")).await;
    }
    cenote(["pool", "create", "--region", &region.name, "--size", "16MiB"]).ok().await;
    browser.wait("the new region", "document.body.className === 'live'").await;
    assert_eq!(browser.run(&format!("return {shown};")).await, false);
    let said = browser.console().await;
    assert!(said.is_empty(), "{said:?}");
    ui.stop().await;
    browser.wait("the server's end", "document.body.className === 'stale'").await;
    let words = browser.run(&format!("return {shown};")).await;
    assert!(words.as_str().is_some_and(|words| words.contains("The server does not answer")), "{words}");
    browser.stop().await;
}
