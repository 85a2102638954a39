//! Descriptions of engine statistics, for `# HELP`.

/// Name without `cenote_`, and a description.
const HELP: &[(&str, &str)] = &[
    ("cached_tokens_total", "Prompt tokens whose KV was loaded from the region"),
    ("cold_blocks", "Blocks in the cold tier"),
    ("cold_bytes", "Bytes of the cold tier"),
    ("cold_dropped_busy_total", "Blocks not written, because too many were waiting"),
    ("cold_dropped_failed_total", "Blocks not written, because writing failed"),
    ("cold_dropped_gone_total", "Blocks not written, because they were evicted before their turn"),
    ("cold_duplicates_total", "Blocks not written, because the cold tier has them"),
    ("cold_errors_damaged_total", "Damaged records of the cold tier"),
    ("cold_errors_full_total", "Writes to the cold tier without space"),
    ("cold_errors_gone_total", "Files or objects of the cold tier that vanished"),
    ("cold_errors_io_total", "Other errors of the cold tier"),
    ("cold_errors_slow_total", "Requests to the cold tier that passed their deadline"),
    ("cold_errors_version_total", "Files of the cold tier with another version"),
    ("cold_found_total", "Blocks that the region lacked and the cold tier lists"),
    ("cold_hits_total", "Blocks that the cold tier brought into the region in time"),
    ("cold_late_total", "Blocks that the cold tier brought after their deadline"),
    ("cold_misses_total", "Blocks that the cold tier lists and could not read"),
    ("cold_open", "Whether the cold tier is in use"),
    ("cold_read_bytes_total", "Bytes read from the cold tier"),
    ("cold_read_queue", "Blocks that are on their way from the cold tier"),
    ("cold_reads_refused_total", "Blocks not read from the cold tier, because too many were waiting"),
    ("cold_reclaimed_total", "Extents or objects removed to keep the cold tier's limit"),
    ("cold_write_queue", "Blocks that wait to be written to the cold tier"),
    ("cold_written_bytes_total", "Bytes written to the cold tier"),
    ("cold_written_total", "Blocks written to the cold tier"),
    ("engine_steps_total", "Steps that the engine has computed"),
    ("generation_tokens_total", "Tokens generated, those of aborted requests too"),
    ("kv_blocks", "KV blocks of the engine's own memory, and those that may be spilled"),
    ("kv_blocks_free", "KV blocks that no request has"),
    ("pool_chunks_adopted_total", "Chunks that this host has taken over from dead hosts"),
    (
        "pool_chunks_shared_total",
        "Chunks that this host has taken from hosts that live, or in the plain design given back for them",
    ),
    ("pool_damaged_total", "Structures and payloads of the region found damaged"),
    ("pool_duplicates_total", "Blocks that were published already when this host published them"),
    ("pool_evicted_total", "Blocks evicted"),
    ("pool_evictions_pinned_total", "Evictions that skipped a pinned block"),
    ("pool_hosts_declared_dead_total", "Hosts that this host has declared dead"),
    ("pool_lock_timeouts_total", "Locks of the region not entered within their deadline"),
    ("pool_locks_abandoned_total", "Locks of the region whose holder died inside"),
    ("pool_lookup_hits_total", "Blocks found by lookups"),
    ("pool_lookups_total", "Blocks asked for by lookups"),
    ("pool_no_room_total", "Blocks not published because the region had no room"),
    ("pool_published_bytes_total", "Payload bytes published"),
    ("pool_published_total", "Blocks published"),
    ("pool_quota_refused_total", "Blocks not published because of their model's quota"),
    ("pool_read_bytes_total", "Payload bytes read"),
    ("pool_reads_damaged_total", "Reads of blocks without their checksum"),
    ("pool_reads_stale_total", "Reads of blocks that were evicted meanwhile"),
    ("pool_reads_total", "Blocks read whole"),
    ("pool_repacked_total", "Cold blocks published anew in fewer bytes"),
    ("pool_reservations_recovered_total", "Reservations of dead workers given back"),
    ("pool_rows_gathered_total", "Rows of pinned blocks copied by gathers"),
    ("pool_rows_missed_total", "Rows of pinned blocks that gathers could not vouch for"),
    ("pool_workers_recovered_total", "Dead workers recovered"),
    ("preemptions_total", "Requests preempted for lack of KV blocks"),
    ("prompt_tokens_total", "Prompt tokens of accepted requests"),
    ("request_errors_total", "Requests that ended with an error"),
    ("requests_finished_total", "Requests that ended well, handed over ones included"),
    ("requests_running", "Requests in the engine's batch"),
    ("requests_swapped", "Preempted requests whose KV is in the region"),
    ("requests_waiting", "Requests in the engine's queue"),
    ("router_expired_total", "Requests that reached their deadline"),
    ("router_handed_over_total", "Requests passed from a prefill to a decode worker"),
    ("router_lost_total", "Requests that ended because workers failed"),
    ("router_refused_total", "Requests refused because all workers were full"),
    ("router_requests_running", "Requests that the router carries"),
    ("router_resumed_total", "Attempts after a failure of a worker"),
    ("spill_blocks", "KV blocks of running requests that the region may hold"),
    ("spill_copied_blocks_total", "Blocks of running requests copied out to the region"),
    ("spill_lost_blocks_total", "Spilled blocks that were damaged or gone, and computed again"),
    ("spill_opened_blocks_total", "Published blocks that a step reads where they lie"),
    ("spill_promoted_blocks_total", "Spilled blocks that returned to the engine's own memory"),
    ("spill_refused_blocks_total", "Blocks of running requests for which the region had no room"),
    ("spilled_blocks", "KV blocks of running requests that the region holds"),
    ("staged_by_compute_pages_total", "Pages of spilled blocks that a compute thread copied itself"),
    ("staged_bytes_total", "Bytes of spilled blocks that steps have read"),
    ("staged_late_pages_total", "Pages of spilled blocks that were not there when their layer was next"),
    ("staged_pages_total", "Pages of spilled blocks that steps have read, K and V as one"),
    ("staged_wasted_pages_total", "Pages of spilled blocks copied for a step that did not read them"),
    ("staging_hidden_ns_total", "Time of copies of spilled blocks during which the engine computed"),
    ("staging_stall_ns_total", "Time in which the engine waited for pages of spilled blocks"),
    ("store_encoded_bytes_total", "Bytes of blocks that were published encoded"),
    ("store_encoded_from_bytes_total", "Bytes that these blocks had before"),
    ("store_holds", "Handed-over requests whose KV is kept from eviction for the next worker"),
    ("store_unreadable_total", "Encoded blocks that could not be decoded"),
    ("swap_damaged_blocks_total", "Swapped blocks that did not come back whole and were computed again"),
    ("swap_in_blocks_total", "Blocks swapped in"),
    ("swap_out_blocks_total", "Blocks swapped out"),
    ("swaps_refused_total", "Swaps for which the region had no room"),
    ("swaps_total", "Requests swapped out"),
    ("worker_connections", "Open connections to workers"),
    ("worker_connections_evicted_total", "Idle connections to workers cut to admit new ones"),
    ("worker_connections_refused_total", "Connections that workers refused because all others were at work"),
    ("worker_restarts_total", "Worker processes started after another had ended"),
    ("workers_alive", "Worker processes that serve"),
    ("workers_configured", "Worker processes that should serve"),
];

/// The description of a statistic, or a general one for an unknown name.
pub fn of(name: &str) -> &'static str {
    let found = HELP.binary_search_by_key(&name, |(known, _)| known);
    found.map_or("A statistic of the engine", |at| HELP[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_no_name_twice() {
        assert!(HELP.is_sorted_by(|(one, _), (next, _)| one < next));
        assert!(HELP.iter().all(|(name, help)| of(name) == *help && !help.contains('\n')));
        assert_eq!(of("no_such_thing"), "A statistic of the engine");
    }
}
