//! The list of checks, and the macro that makes tests of them.

/// Hands the list of checks, by module, to one of the macros here.
#[doc(hidden)]
#[macro_export]
macro_rules! every_check {
    ($then:ident $($prefix:tt)*) => {
        $crate::$then! { [$($prefix)*]
            copies:
                copies_outside_the_segment_are_refused,
                copies_up_to_the_end_and_empty_ones_are_fine,
                copies_of_nothing_change_nothing,
                copies_outside_the_source_are_refused_and_give_it_back,
                rule_04_ranged_copies_are_exact_at_odd_offsets,
                rule_04_copies_without_a_stream_are_exact_at_odd_offsets,
                copies_within_the_device_are_exact,
                copies_of_many_ranges_arrive_each_in_its_place,
                copies_of_megabytes_are_whole,
                copies_filling_sets_its_range_alone,
                copies_with_another_devices_objects_are_refused,
            ;
            devices:
                devices_are_named_by_index_and_by_uuid,
                devices_are_what_the_list_says,
                devices_that_do_not_exist_are_refused,
                devices_have_sensible_limits,
                rule_07_drivers_know_nothing_of_each_other,
            ;
            elements:
                rule_04_vectors_of_every_kind_make_the_round_trip,
                vectors_every_access_checks_its_bounds,
                rule_02_device_only_vectors_have_1_to_i32_max_elements,
                rule_02_records_move_whole_or_not_at_all,
                rule_04_byte_copies_move_exactly_the_destinations_size,
                rule_04_byte_copies_of_vectors_at_odd_offsets,
                rule_10_implicit_paths_of_vectors_settle_non_blocking_streams,
                rule_10_naming_a_stream_settles_nothing,
                ledger_vectors_may_be_dropped_while_copies_are_pending,
                vectors_streams_of_another_device_are_refused,
                vectors_of_odd_sizes_move_whole,
            ;
            events:
                events_never_recorded_are_refused,
                events_stand_for_what_was_enqueued_before,
                events_on_an_idle_stream_are_reached,
                events_order_streams_without_the_host,
                events_a_wait_binds_to_the_latest_record_at_the_call,
                events_diamonds_join,
                events_chains_hand_on,
                events_of_the_own_stream_do_not_lock_it_up,
                events_the_default_stream_waits_for_them,
                rule_08_a_true_event_query_releases_what_was_kept,
                rule_08_synchronizing_an_event_releases_what_was_kept,
                events_clones_are_the_same_event,
                events_of_another_device_are_refused,
                events_come_and_go,
            ;
            handles:
                rule_17_release_is_refused_in_flight_and_can_be_retried,
                rule_11_a_lent_destination_cannot_be_read_before_the_loan_ends,
                rule_17_loans_are_within_bounds,
                rule_17_with_alloc_synchronises_its_stream_and_releases,
                rule_17_with_alloc_leaves_memory_in_flight_to_the_ledger,
                rule_17_with_alloc_releases_on_a_panic,
                rule_17_registered_memory_comes_back,
                rule_19_half_precision_elements_may_be_pinned,
                rule_16_registrations_by_address_refuse_overlaps_parts_and_handles,
                rule_17_a_dropped_handle_leaves_its_memory_to_the_copies,
            ;
            host_pointers:
                rule_23_attaching_is_taken_or_refused_by_reason,
                rule_06_memory_in_use_counts_host_pointer_buffers,
                rule_23_acquire_and_publish_carry_writes_across,
                rule_23_acquire_waits_for_every_stream_that_uses_the_vector,
                rule_23_the_buffer_keeps_the_memory,
                rule_23_misaligned_memory_is_refused,
            ;
            launches:
                rule_01_launches_move_what_they_need,
                rule_02_launches_refuse_vectors_that_are_too_long,
                rule_10_default_stream_launches_settle_non_blocking_streams,
                rule_14_the_window_holds_default_stream_launches_alone,
                rule_22_staged_writes_interleaved_with_launches_lose_none,
                rule_25_host_access_comes_after_the_launches_that_use_the_vector,
                rule_24_kernels_read_and_write_host_memory_in_place,
            ;
            ledger:
                rule_08_sources_live_until_their_copy_has_run,
                rule_08_collecting_lets_go_of_what_has_run,
                rule_08_a_dropped_stream_hands_its_work_to_the_ledger,
                rule_11_destination_of_a_stream_readback_is_not_readable_before_it_ran,
                rule_11_an_abandoned_readback_keeps_its_memory_until_it_ran,
                rule_11_a_forgotten_readback_is_sound,
                rule_11_readbacks_are_fetched_in_any_order,
                ledger_segments_outlive_their_handles_while_copies_are_pending,
                ledger_handles_may_be_dropped_in_every_order,
                ledger_reserving_changes_nothing,
                ledger_drops_of_sources_may_use_the_driver,
            ;
            locations:
                rule_01_every_cell_of_the_location_table,
                rule_01_automatic_transfers_can_be_turned_off_for_a_driver,
                rule_01_copies_without_a_stream_change_the_location_alike,
                rule_01_copies_between_vectors_change_the_destination_alone,
                rule_03_host_access_to_device_only_vectors,
                rule_05_writing_one_element_loses_nothing,
                rule_05_a_second_device_gets_the_newest_copy,
                rule_05_freeing_the_newest_copy_brings_it_back,
                rule_05_freeing_a_device_only_vector_discards_it,
                rule_05_freeing_in_flight_is_refused,
                rule_06_memory_in_use_counts_buffers_of_vectors,
            ;
            offers:
                table_verdicts_are_those_of_the_contract,
                table_every_refusal_has_a_reason,
                table_what_is_lacking_is_refused_by_name,
                table_borrowing_is_refused_by_name,
                table_host_pointers_are_given_where_promised,
                words_are_written_in_stream_order,
                words_are_waited_for,
                devices_foreign_handles_are_refused_by_the_port,
            ;
            pinned:
                rule_15_nothing_is_pinned_unasked,
                rule_16_unregistering_is_refused_while_any_part_is_in_flight,
                rule_16_unregistering_is_refused_while_a_readback_is_in_flight,
                rule_16_registering_what_is_registered_is_refused,
                rule_17_dropping_a_handle_in_flight_unregisters_after_the_copy,
                rule_17_a_released_handle_cannot_be_read,
                rule_17_pinned_memory_carries_copies_both_ways,
                rule_17_impossible_sizes_are_refused,
                rule_18_the_probe_agrees_with_the_verdict,
                rule_12_pageable_stream_copies_are_allowed_and_counted,
                rule_20_copies_across_registrations_are_right_or_refused,
                rule_07_every_device_has_its_own_registry,
                rule_17_memory_outlives_its_handles_while_in_use,
            ;
            segments:
                segments_have_a_size_within_the_limit,
                segments_stay_where_they_are,
                rule_06_memory_in_use_counts_segments,
                rule_06_memory_in_use_counts_what_pending_work_needs,
                segments_out_of_memory_is_a_clean_error,
                segments_allocation_retires_what_has_run,
                segments_exportable_or_refused,
                segments_at_reserved_addresses_come_and_go,
            ;
            sharing:
                sharing_both_sides_see_the_same_bytes,
                sharing_a_descriptor_keeps_the_memory,
                sharing_wrong_descriptors_are_refused,
            ;
            staging:
                rule_21_staging_takes_65536_bytes_and_no_more,
                rule_21_the_source_may_be_overwritten_at_once,
                rule_21_staging_has_the_conditions_of_a_ranged_copy,
                rule_02_records_cannot_be_staged,
                rule_15_the_staging_ring_is_pinned_on_first_use_alone,
                rule_21_the_host_waits_only_for_room_in_the_ring,
                rule_10_staging_settles_non_blocking_streams,
                rule_21_staging_on_a_captured_stream_is_refused,
                rule_21_staged_writes_keep_the_order_of_their_stream,
                rule_21_staging_is_complete_on_return_where_copies_are,
                rule_22_staged_writes_interleaved_with_copies_lose_nothing,
            ;
            streams:
                streams_run_their_work_in_order,
                rule_13_stream_copies_are_enqueued_not_completed,
                rule_13_default_stream_copies_are_complete_on_return,
                rule_09_the_default_stream_waits_for_blocking_streams,
                rule_09_the_default_stream_sees_what_blocking_streams_did,
                rule_09_default_stream_handles_order_themselves_after_blocking_streams,
                rule_09_waits_and_records_of_the_default_stream_come_after_blocking_streams,
                rule_09_blocking_streams_wait_for_the_default_stream,
                rule_09_the_default_stream_does_not_wait_for_non_blocking_streams,
                rule_10_copies_without_a_stream_settle_non_blocking_streams,
                rule_10_explicit_streams_are_never_settled,
                streams_are_independent_of_each_other,
                streams_query_and_synchronize,
                rule_08_flush_waits_for_every_stream_and_retires,
                streams_are_told_apart_and_remember_their_options,
                streams_say_whether_they_are_captured,
                streams_come_and_go,
            ;
            stress:
                stress_many_small_copies,
                stress_a_batch_equals_its_copies,
                stress_a_ring_of_chunks_feeds_slots,
                stress_churn_of_segments_between_copies,
            ;
            threads:
                rule_07_types_say_what_threads_may_share,
                threads_work_on_parts_of_one_segment,
                threads_streams_move,
                threads_hand_work_over_by_events,
                threads_ledger_and_registry_are_shared,
                threads_share_the_default_stream,
            ;
            typed:
                rule_02_device_only_lengths_are_1_to_i32_max,
                rule_04_elements_of_every_kind_come_back_bit_by_bit,
                vectors_bounds_count_elements,
                vectors_views_are_aligned_and_inside,
                rule_04_bytes_cross_kinds_without_conversion,
                rule_05_dropping_a_device_only_vector_frees_it,
            ;
        }
    };
}

/// Stamps every check on a backend: one test each, in a module of the backend's name.
///
/// Checks that the backend is known to fail are listed with the reason; each has to fail, so that the list
/// shrinks when the backend gets better:
/// `conformance!(native, Platform::native(), except { some_check: "why" })`.
#[macro_export]
macro_rules! conformance {
    ($backend:ident, $platform:expr) => { $crate::conformance!($backend, $platform, except {}); };
    ($backend:ident, $platform:expr, except { $($check:ident: $reason:literal),* $(,)? }) => {
        mod $backend {
            #[allow(unused_imports)]
            use super::*;

            const EXPECTED_FAILURES: &[(&str, &str)] = &[$((stringify!($check), $reason)),*];

            // A misspelt name would expect nothing.
            $(const _: fn(&$crate::Subject) = $crate::checks::all::$check;)*

            $crate::every_check!(stamp_checks $platform);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! stamp_checks {
    ([$platform:expr] $($module:ident: $($check:ident,)* ;)*) => {
        $($(
            #[test]
            fn $check() {
                let check = $crate::checks::$module::$check;
                $crate::run($platform, stringify!($check), check, EXPECTED_FAILURES);
            }
        )*)*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! list_checks {
    ([] $($module:ident: $($check:ident,)* ;)*) => {
        &[$($(stringify!($check),)*)*]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! list_functions {
    ([] $($module:ident: $($check:ident,)* ;)*) => {
        &[$($((stringify!($check), $crate::checks::$module::$check as fn(&$crate::Subject)),)*)*]
    };
}

/// A check and its name.
pub type Check = (&'static str, fn(&crate::Subject));

/// All checks.
pub const FUNCTIONS: &[Check] = every_check!(list_functions);

/// The names of all checks.
pub const CHECKS: &[&str] = every_check!(list_checks);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::CHECKS;

    /// A check that is written and not listed would never run.
    #[test]
    fn every_check_is_listed_once() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/checks");
        let mut written = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let names = text.lines().filter_map(|line| line.strip_prefix("pub fn ")?.split('(').next());
            written.extend(names.map(str::to_owned));
        }
        written.sort();
        let mut listed = CHECKS.to_vec();
        listed.sort_unstable();
        assert_eq!(written, listed);
    }
}
