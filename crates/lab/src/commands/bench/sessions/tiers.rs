//! Where cached tokens came from, by a server's own counters.

use std::collections::HashMap;

/// Values of the known counters of a page of metrics by name, summed over labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    values: HashMap<String, f64>,
    /// Tokens of a KV block, if the page says so, as vLLM's does.
    pub block_tokens: Option<u32>,
}

impl Page {
    /// Reads Prometheus' text. Lines of another form count for nothing.
    pub fn parse(text: &str) -> Self {
        let mut page = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            // A label's value may have spaces; the sample's value follows the last bracket.
            let value = line.rsplit_once('}').map_or(&line[name.len()..], |(_, value)| value);
            let Some(Ok(value)) = value.split_whitespace().next().map(str::parse::<f64>) else { continue };
            if FAMILIES.iter().any(|family| family.names().any(|known| known == name)) {
                *page.values.entry(name.to_owned()).or_default() += value;
            }
            if name == "vllm:cache_config_info" {
                let size = line.split("block_size=\"").nth(1).and_then(|rest| rest.split('"').next());
                page.block_tokens = size.and_then(|size| size.parse().ok());
            }
        }
        page
    }

    /// Growth of a counter since `before`; `None` if the server has none of this name.
    pub fn since(&self, before: &Self, name: &str) -> Option<f64> {
        let value = |page: &Self| page.values.get(name).copied();
        Some((value(self)? - value(before).unwrap_or(0.0)).max(0.0))
    }
}

/// A server's counters: its tokens found in all tiers but its own cache, tokens found in its own cache, and
/// blocks that came from slower tiers.
struct Family {
    found: &'static str,
    own: Option<&'static str>,
    cold: &'static str,
    peers: &'static str,
    evicted: Option<&'static str>,
    published: Option<&'static str>,
}

impl Family {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        let certain = [self.found, self.cold, self.peers].into_iter();
        certain.chain([self.own, self.evicted, self.published].into_iter().flatten())
    }
}

/// Bytes that a server of Cenote has published in its region.
pub const PUBLISHED_BYTES: &str = "cenote_pool_published_bytes_total";

const FAMILIES: [Family; 2] = [
    Family {
        found: "cenote_cached_tokens_total",
        own: None,
        cold: "cenote_cold_hits_total",
        peers: "cenote_remote_hits_total",
        evicted: Some("cenote_pool_evicted_total"),
        published: Some(PUBLISHED_BYTES),
    },
    Family {
        found: "vllm:external_prefix_cache_hits_total",
        own: Some("vllm:prefix_cache_hits_total"),
        cold: "vllm:cenote_cold_hits_total",
        peers: "vllm:cenote_remote_hits_total",
        evicted: None,
        published: None,
    },
];

/// Tokens of prompts that were not computed, by where they were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Tiers {
    /// In the engine's own cache; `None` if it has none.
    pub own: Option<f64>,
    /// In the region, or in what else a connector of vLLM's reads.
    pub region: f64,
    /// In L4: brought into the region in time.
    pub cold: f64,
    /// In other hosts' regions.
    pub peers: f64,
    /// Blocks that the region evicted meanwhile.
    pub evicted_blocks: Option<f64>,
}

impl Tiers {
    /// The tiers between two pages of a server with blocks of so many tokens; `None` if it has no such
    /// counters.
    pub fn between(before: &Page, after: &Page, block_tokens: u32) -> Option<Self> {
        let since = |name: &str| after.since(before, name);
        let family = FAMILIES
            .iter()
            .find(|family| since(family.found).is_some() || family.own.is_some_and(|own| since(own).is_some()))?;
        let blocks = |name: &str| since(name).unwrap_or(0.0) * f64::from(block_tokens);
        let found = since(family.found).unwrap_or(0.0);
        // A block may be brought for a request that does not read it in the end.
        let cold = blocks(family.cold).min(found);
        let peers = blocks(family.peers).min(found - cold);
        Some(Self {
            own: family.own.and_then(since),
            region: found - cold - peers,
            cold,
            peers,
            evicted_blocks: family.evicted.and_then(since),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CENOTE: &str = "# TYPE cenote_cached_tokens_total counter\ncenote_cached_tokens_total 640\n\
         cenote_cold_hits_total{worker=\"a b\"} 4\ncenote_cold_hits_total{worker=\"c}d\"} 6\ncenote_remote_hits_total 2\n\
         cenote_pool_evicted_total 9\nbroken\n";

    #[test]
    fn tiers_of_cenote_are_parts_of_its_cached_tokens() {
        let before = Page::parse("cenote_cached_tokens_total 64\ncenote_cold_hits_total 1\n");
        let tiers = Tiers::between(&before, &Page::parse(CENOTE), 16).expect("counters");
        let expected = Tiers { own: None, region: 400.0, cold: 144.0, peers: 32.0, evicted_blocks: Some(9.0) };
        assert_eq!(tiers, expected);
        assert_eq!(Tiers::between(&before, &Page::parse("other 1\n"), 16), None);
    }

    #[test]
    fn blocks_that_no_request_read_do_not_exceed_what_was_found() {
        let after =
            Page::parse("cenote_cached_tokens_total 32\ncenote_cold_hits_total 9\ncenote_remote_hits_total 9\n");
        let tiers = Tiers::between(&Page::default(), &after, 16).expect("counters");
        assert_eq!((tiers.region, tiers.cold, tiers.peers), (0.0, 32.0, 0.0));
    }

    #[test]
    fn tiers_of_vllm_have_its_own_cache() {
        let config = "vllm:cache_config_info{block_size=\"32\",engine=\"0\"} 1.0\n";
        let own = "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"m\"} 96.0\n";
        let page = Page::parse(&format!("{config}{own}vllm:prefix_cache_hits_created{{engine=\"0\"}} 1.7e9\n"));
        assert_eq!(page.block_tokens, Some(32));
        let tiers = Tiers::between(&Page::default(), &page, 32).expect("counters");
        assert_eq!((tiers.own, tiers.region, tiers.evicted_blocks), (Some(96.0), 0.0, None));
        let external =
            Page::parse(&format!("{own}vllm:external_prefix_cache_hits_total 64\nvllm:cenote_cold_hits_total 1\n"));
        let tiers = Tiers::between(&page, &external, 32).expect("counters");
        assert_eq!((tiers.own, tiers.region, tiers.cold), (Some(0.0), 32.0, 32.0));
    }
}
