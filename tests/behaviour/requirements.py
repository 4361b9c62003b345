"""What is promised to users, and the tests that show it: `file::test`, the file relative to this folder's parent."""

from __future__ import annotations

from typing import NamedTuple


class Requirement(NamedTuple):
    """A promise in one sentence."""

    promise: str
    shown_by: tuple[str, ...]


REQUIREMENTS = {
    "P1": Requirement(
        "POST /mcp speaks Streamable HTTP in every revision of the SDK, with all of its methods.",
        (
            "conformance/test_conformance.py::test_every_scored_scenario_of_both_revisions_passes",
            "behaviour/test_every_way_in.py::test_tools_are_listed_with_all_that_a_client_needs",
            "inbound/test_sessions.py::test_progress_and_logs_arrive_while_the_call_is_open",
            "inbound/test_sessions.py::test_open_sessions_hear_that_a_list_changed",
            "inbound/test_sessions.py::test_listeners_of_the_newest_revision_hear_it_too",
            "inbound/test_sessions.py::test_a_cancelled_call_stops_the_work_behind_it",
            "inbound/test_http_app.py::test_a_long_list_comes_in_pages",
            "behaviour/test_every_way_in.py::test_templates_are_listed_and_their_variables_completed",
        ),
    ),
    "P2": Requirement(
        "The same server works on standard input and output, with nothing but protocol on stdout.",
        (
            "inbound/test_stdio.py::test_what_a_tool_prints_does_not_reach_the_protocol",
            "inbound/test_stdio.py::test_pending_answers_are_written_before_the_process_ends",
        ),
    ),
    "P3": Requirement(
        "Plain curl works with only a Content-Type; ids are echoed and a notification gets 202.",
        (
            "inbound/test_http_app.py::test_curl_needs_only_a_content_type",
            "inbound/test_http_app.py::test_ids_are_echoed_as_they_came",
            "inbound/test_http_app.py::test_a_notification_gets_202_and_no_body",
            "inbound/test_http_app.py::test_initialize_works_without_a_session",
        ),
    ),
    "P4": Requirement(
        "JSON-RPC errors have their codes, name every wrong argument, and always carry the same data.",
        (
            "behaviour/test_every_way_in.py::test_every_wrong_argument_is_named_with_its_rule",
            "behaviour/test_every_way_in.py::test_a_synonym_and_a_number_as_text_are_taken_for_what_they_mean",
            "behaviour/test_every_way_in.py::test_an_unknown_method_is_told_so",
            "behaviour/test_every_way_in.py::test_an_unknown_tool_is_told_with_the_nearest_name",
            "behaviour/test_every_way_in.py::test_a_call_without_a_name_is_an_invalid_argument",
            "behaviour/test_every_way_in.py::test_a_cursor_that_no_list_gave_is_refused",
            "behaviour/test_every_way_in.py::test_an_engine_that_is_down_is_an_error_with_a_time_to_come_back",
            "behaviour/test_every_way_in.py::test_an_unforeseen_failure_tells_nothing_of_the_inside",
            "inbound/test_http_app.py::test_a_malformed_message_is_told_what_is_wrong",
        ),
    ),
    "P5": Requirement(
        "What goes wrong inside a tool is a result that says what to do next.",
        (
            "behaviour/test_every_way_in.py::test_a_tool_that_fails_says_in_its_result_what_to_do",
            "behaviour/test_every_way_in.py::test_a_document_that_is_not_there_is_a_tool_error_with_a_hint",
        ),
    ),
    "P6": Requirement(
        "Every tool is described and annotated; text and structure each stand alone.",
        (
            "tools/test_listing.py::test_every_tool_says_all_that_a_client_needs",
            "tools/test_listing.py::test_the_list_costs_few_tokens",
            "behaviour/test_every_way_in.py::test_a_structured_answer_stands_alone_in_text_and_in_structure",
        ),
    ),
    "P6a": Requirement(
        "An answer keeps to its budget, says what it spent and left out, and how to go on.",
        (
            "tools/test_documentation.py::test_an_answer_keeps_to_its_budget_and_tells_what_it_left_out",
            "tools/test_documentation.py::test_the_default_answer_is_below_eight_kilobytes",
            "tools/test_documentation.py::test_a_long_document_is_read_page_by_page_without_a_gap",
        ),
    ),
    "P7": Requirement(
        "/health, /ready, /metrics and / tell how the server is.",
        (
            "inbound/test_http_app.py::test_the_pages_tell_how_the_server_is",
            "inbound/test_http_app.py::test_every_call_is_counted_and_no_made_up_name_becomes_a_label",
        ),
    ),
    "P8": Requirement(
        "Another service runs any tool for a user it names, and gets chunk windows; a missing trace id is made.",
        (
            "inbound/test_internal.py::test_a_tool_is_run_for_the_user_that_is_named",
            "inbound/test_internal.py::test_a_missing_trace_id_is_made",
            "inbound/test_internal.py::test_what_goes_wrong_has_a_status_a_code_and_the_trace",
            "inbound/test_internal.py::test_every_tool_works_on_a_file_of_each_format",
            "inbound/test_internal.py::test_a_key_acts_for_its_own_tenant_and_a_service_for_any",
            "inbound/test_internal.py::test_chunk_windows_are_served_to_other_services",
        ),
    ),
    "P8a": Requirement(
        "A bare GET is refused at once, a bad id is never swallowed, and one id is in flight only once.",
        (
            "inbound/test_http_app.py::test_a_bare_get_is_answered_at_once_with_405",
            "inbound/test_http_app.py::test_an_id_that_is_none_is_an_error_and_never_swallowed",
            "inbound/test_http_app.py::test_two_calls_of_one_id_in_a_session_cannot_be_in_flight",
            "inbound/test_stdio.py::test_a_second_call_of_an_id_in_flight_is_refused_and_a_cancelled_id_is_free_again",
        ),
    ),
    "P9": Requirement(
        "It is a library, too.",
        ("tools/test_documentation.py::test_the_first_question_of_a_new_user_is_answered",),
    ),
    "Y1": Requirement(
        "Keys say who calls; without a valid one nothing is answered where they are required.",
        (
            "inbound/test_keys.py::test_a_key_says_who_calls",
            "inbound/test_keys.py::test_without_a_valid_key_nothing_is_answered",
            "inbound/test_keys.py::test_an_open_bind_without_keys_is_refused",
            "inbound/test_keys.py::test_a_session_belongs_to_the_key_that_opened_it",
            "inbound/test_oauth.py::test_a_client_without_a_token_is_told_where_to_get_one",
            "inbound/test_oauth.py::test_the_official_client_finds_its_way_and_comes_back_with_more_scopes",
        ),
    ),
    "Y2": Requirement(
        "Origin and Host are checked, and CORS is for those that are configured.",
        (
            "inbound/test_http_app.py::test_a_foreign_origin_is_refused_everywhere",
            "inbound/test_http_app.py::test_a_foreign_host_is_refused_everywhere",
            "inbound/test_http_app.py::test_a_configured_origin_may_call_and_may_ask_first",
        ),
    ),
    "Y3": Requirement(
        "Answers are kept in memory or in Redis, made once for all who ask at once; a cache that is away fails none.",
        (
            "tools/test_knowledge_cache.py::test_a_thousand_searches_at_once_are_one_for_the_engine",
            "cache/test_redis.py::test_a_thousand_who_ask_at_once_for_what_is_not_there_share_one_making",
            "cache/test_redis.py::test_two_processes_that_ask_at_once_make_one_answer",
            "cache/test_redis.py::test_a_redis_that_is_killed_and_restarted_fails_no_call",
            "cache/test_redis.py::test_while_redis_is_paused_only_the_first_operation_waits",
            "cache/test_redis.py::test_answers_are_cleared_by_tenant_by_tool_or_all",
            "inbound/test_state.py::test_a_desk_whose_redis_was_never_there_answers_and_says_so",
        ),
    ),
    "Y4": Requirement(
        "Whatever fails five times in a row is left alone for a while and tried by a bounded number; that is told.",
        (
            "resilience/test_dependency.py::test_of_a_thousand_callers_exactly_the_trials_are_let_through",
            "inbound/test_state.py::test_an_endpoint_that_fails_is_left_alone_and_that_is_told_everywhere",
            "r2r/test_outages.py::test_r2r_is_killed_and_started_again_under_a_running_desk",
        ),
    ),
    "Y5": Requirement(
        "Calls and tokens are limited by user, and all calls together, in memory or in Redis.",
        (
            "policy/test_rate_limit.py::test_each_caller_has_a_rate_of_its_own",
            "policy/test_rate_limit.py::test_all_callers_share_what_there_is_in_all",
            "inbound/test_state.py::test_a_limit_that_is_over_is_told_and_counted",
        ),
    ),
    "R2R": Requirement(
        "Every tool works on a real R2R, tenants and projects under one account apart, through expiry and outages.",
        (
            "r2r/test_workflow.py::test_document_is_ingested_monitored_found_cached_and_cited",
            "r2r/test_isolation.py::test_where_r2r_itself_would_leak_we_do_not",
            "r2r/test_isolation.py::test_a_search_in_one_project_finds_nothing_of_another",
            "r2r/test_tokens.py::test_a_hundred_callers_whose_token_is_taken_back_make_one_refresh",
            "r2r/test_tokens.py::test_a_refresh_token_that_is_used_up_is_followed_by_one_login",
            "r2r/test_outages.py::test_a_storm_of_refusals_is_not_answered_with_a_storm_of_requests",
        ),
    ),
    "Y6": Requirement(
        "Every call has a deadline, and a client that goes away stops the work behind it.",
        (
            "inbound/test_http_app.py::test_a_call_that_lasts_too_long_is_stopped_and_told_so",
            "inbound/test_http_app.py::test_a_client_that_leaves_stops_the_work_behind_it",
        ),
    ),
    "Y7": Requirement(
        "One structured line a call, without what was sent and without secrets.",
        (
            "policy/test_policies.py::test_every_call_is_one_line_without_its_arguments",
            "inbound/test_process.py::test_secrets_do_not_appear_in_what_check_shows",
        ),
    ),
    "docs": Requirement(
        "The docs toolset finds passages with their sources and reads documents; its set names are a live list.",
        (
            "behaviour/test_every_way_in.py::test_a_search_answers_with_passages_and_their_sources",
            "behaviour/test_every_way_in.py::test_a_document_is_read_by_its_id",
            "behaviour/test_every_way_in.py::test_a_value_outside_the_live_list_is_refused_with_the_list",
            "tools/test_documentation.py::test_another_tenants_document_answers_exactly_as_one_that_does_not_exist",
        ),
    ),
    "r2r": Requirement(
        "The six r2r tools search, answer, bring in, list and watch, with budgets, filters and a cache.",
        (
            "tools/test_r2r.py::test_what_is_brought_in_is_found_with_its_source_version_and_age",
            "tools/test_r2r.py::test_text_and_structure_each_tell_the_whole",
            "tools/test_r2r.py::test_filters_choose_by_fields_and_metadata_in_every_mode",
            "tools/test_r2r.py::test_an_answer_keeps_to_its_budget_in_text_and_in_structure",
            "tools/test_r2r.py::test_the_same_search_is_answered_from_the_cache_until_a_document_changes",
            "tools/test_r2r.py::test_documents_are_listed_page_by_page_with_the_number_of_all",
            "tools/test_r2r.py::test_progress_is_told_while_a_call_waits",
            "tools/test_r2r.py::test_in_a_batch_the_good_ones_go_on_and_the_others_are_told_of",
            "tools/test_r2r.py::test_nothing_outside_the_open_folders_is_brought_in",
        ),
    ),
    "answers": Requirement(
        "An answer cites passages that were retrieved, or says plainly that the documents do not hold it.",
        (
            "answers/test_writing.py::test_an_answer_without_sound_citations_gets_a_second_try",
            "answers/test_writing.py::test_the_clients_own_model_writes_when_it_offers_that",
            "answers/test_extractive.py::test_every_quote_is_made_of_slices_of_its_hit_and_fits_the_budget",
            "answers/test_extractive.py::test_what_the_documents_do_not_hold_is_said_plainly_with_the_nearest_of_them",
        ),
    ),
    "projects": Requirement(
        "The current project has a collection, made when it is first used and found again after a restart.",
        (
            "tools/test_projects.py::test_the_first_root_names_the_collection_which_is_made_and_written_down",
            "tools/test_projects.py::test_a_project_is_found_again_after_a_restart_by_the_file_that_people_may_edit",
            "tools/test_projects.py::test_folders_of_one_name_are_projects_of_their_own",
            "behaviour/test_windows.py::test_two_windows_never_see_each_others_documents",
            "r2r/test_windows.py::test_two_windows_never_see_each_others_documents",
            "tools/test_r2r.py::test_the_history_has_the_last_ten_searches_of_its_own_user_and_survives_a_restart",
        ),
    ),
    "nothing is lost": Requirement(
        "Whatever was acknowledged survives kill -9, faults of the disk and of files, and other processes.",
        (
            "engines/test_crashes.py::test_kills_at_random_moments_lose_nothing",
            "engines/test_crashes.py::test_kills_halfway_through_a_commit_lose_nothing",
            "engines/test_faults.py::test_a_full_disk_is_told_and_nothing_is_lost_when_there_is_room_again",
            "engines/test_faults.py::test_each_file_that_cannot_be_read_says_why_and_the_others_come_in",
            "engines/test_processes.py::test_when_the_writer_dies_another_process_takes_over_its_queue",
        ),
    ),
    "tenants": Requirement(
        "Tenants with the same documents never see each other, in whatever tool, resource, history, cache or count.",
        (
            "tools/test_tenants.py::test_every_tool_has_an_entry_here",
            "tools/test_tenants.py::test_a_tool_tells_a_tenant_nothing_of_the_other",
            "tools/test_tenants.py::test_what_is_kept_for_one_is_not_given_to_the_other",
        ),
    ),
    "reader": Requirement(
        "A document is read in parts within a budget, a rate and a tenant.",
        (
            "tools/test_reader.py::test_a_section_is_read_with_its_subsections",
            "tools/test_reader.py::test_text_is_cut_on_a_character_and_goes_on_from_there",
            "tools/test_reader.py::test_pages_are_read_some_at_a_time",
            "tools/test_reader.py::test_metadata_lists_sections_tags_and_tenant",
            "tools/test_reader.py::test_passages_are_found_within_a_document",
            "tools/test_reader.py::test_a_window_has_so_many_chunks_on_each_side",
            "tools/test_reader.py::test_the_tools_that_a_caller_may_use_are_listed",
            "tools/test_reader.py::test_a_document_can_be_read_only_so_often",
            "tools/test_reader.py::test_another_tenants_document_answers_as_one_that_does_not_exist",
            "tools/test_reader.py::test_a_blocked_keyword_is_not_handed_out",
            "inbound/test_internal.py::test_one_desk_asks_another_process_for_its_windows",
        ),
    ),
    "convert": Requirement(
        "Files, bytes and URLs become documents with their structure, by a handle, and leave in three forms.",
        (
            "clients/test_documents.py::test_every_tool_works_on_a_file_of_each_format",
            "clients/test_documents.py::test_progress_of_a_long_conversion_is_reported",
            "tools/test_conversion.py::test_a_summary_says_what_the_document_is_and_how_to_read_on",
            "tools/test_conversion.py::test_bytes_are_as_good_as_a_path_and_are_not_converted_again",
            "tools/test_conversion.py::test_no_file_outside_the_roots_is_read",
            "tools/test_conversion.py::test_no_internal_address_is_fetched",
            "tools/test_conversion.py::test_every_tool_has_the_deadline_of_its_work",
            "tools/test_conversion.py::test_a_docling_document_from_elsewhere_is_exported",
            "documents/convert/test_docling.py::test_any_document_is_valid_and_comes_back_as_it_was",
        ),
    ),
    "resources and prompts": Requirement(
        "Documentation sets and documents are resources; common jobs are prompts.",
        (
            "behaviour/test_every_way_in.py::test_resources_are_listed_and_read",
            "behaviour/test_every_way_in.py::test_an_unknown_resource_is_an_invalid_argument",
            "behaviour/test_every_way_in.py::test_prompts_are_listed_filled_in_and_completed",
            "behaviour/test_every_way_in.py::test_a_prompt_without_its_argument_is_refused",
        ),
    ),
    "G1": Requirement(
        "Servers of other clients' files are taken as they are, over four transports, with variables filled in.",
        (
            "test_config_servers.py::test_what_other_programs_write_as_json_may_be_put_into_the_file_as_it_is",
            "test_config_servers.py::test_what_other_clients_write_is_understood",
            "test_config_servers.py::test_variables_are_filled_into_every_text_of_a_server",
            "test_config_servers.py::test_secrets_are_shown_nowhere_and_told_to_the_log",
            "cli/test_servers_import.py::test_all_clients_are_asked_and_each_server_has_its_outcome",
            "downstream/files/test_files.py::test_the_servers_of_every_client_are_found",
            "downstream/test_contract.py::test_a_request_gets_its_answer",
            "downstream/fleet/test_fleet_processes.py::test_all_transports_and_both_eras_are_one_fleet",
        ),
    ),
    "G2": Requirement(
        "The client shakes hands in order, checks what a server can do, and keeps its tools until they change.",
        (
            "downstream/client/test_mcp_client.py::test_the_handshake_has_its_order_and_its_ids",
            "downstream/client/test_mcp_client.py::test_a_server_without_tools_is_refused_before_the_handshake_is_completed",
            "downstream/client/test_mcp_client.py::test_the_revision_is_the_one_of_the_environment",
            "downstream/test_session.py::test_an_older_revision_is_taken_with_a_warning",
            "downstream/test_session.py::test_capabilities_are_asked_for_by_dotted_names",
            "downstream/client/test_mcp_client.py::test_the_tools_are_asked_for_once_until_they_are_invalidated",
            "downstream/client/test_mcp_client.py::test_tools_that_are_too_old_are_asked_for_again",
            "downstream/client/test_mcp_client.py::test_tools_that_changed_are_asked_for_again",
        ),
    ),
    "G3": Requirement(
        "A connection says how it stands, is retried within bounds, and has time-outs that can change.",
        (
            "downstream/connection/test_connection.py::test_it_connects_by_itself_and_its_statuses_are_seen_in_order",
            "downstream/connection/test_connection.py::test_time_outs_can_be_changed_while_it_runs",
            "downstream/connection/test_backoff.py::test_pauses_double_and_are_scattered",
            "downstream/connection/test_backoff.py::test_after_so_many_tries_it_rests_long_unless_it_is_asked_for",
            "downstream/connection/test_connection.py::test_an_unused_session_is_closed_and_the_next_call_opens_another",
            "downstream/connection/test_connection.py::test_short_sessions_are_made_for_each_operation",
            "downstream/connection/test_connection.py::test_the_breaker_opens_on_a_hanging_server_and_one_trial_closes_it",
        ),
    ),
    "G4": Requirement(
        "A server that hangs, crashes or talks nonsense delays and breaks nobody else; what it had last is offered on.",
        (
            "gateway/test_start.py::test_of_ten_servers_one_hangs_and_one_crashes_and_eight_are_there",
            "gateway/test_stdio_faults.py::test_f2_a_server_that_hangs_at_its_start_holds_nobody_up",
            "gateway/test_stdio_faults.py::test_f12_a_flood_holds_up_neither_other_servers_nor_the_flooding_one",
            "gateway/test_http_faults.py::test_f8_to_f13_an_answer_that_is_none_fails_its_call_and_nothing_else",
            "downstream/fleet/test_fleet_processes.py::test_ten_servers_of_which_one_hangs_and_one_crashes_are_eight_good_ones",
            "downstream/fleet/test_fleet_processes.py::test_a_start_while_a_server_is_down_offers_what_it_had",
            "downstream/fleet/test_fleet_processes.py::test_a_server_that_dies_is_there_again_with_its_lists",
            "downstream/fleet/test_fleet.py::test_lists_that_are_not_old_are_not_asked_for_and_old_ones_in_the_background",
            "downstream/fleet/test_fleet.py::test_a_list_that_fails_leaves_what_was_known_and_is_told",
            "downstream/fleet/test_fleet.py::test_a_list_that_hangs_keeps_no_other_waiting",
            "downstream/connection/test_connection_processes.py::test_a_crash_in_a_call_is_an_error_at_once_and_the_next_call_works",
            "downstream/connection/test_connection_processes.py::test_garbage_between_messages_costs_nobody_his_answer",
        ),
    ),
    "G5": Requirement(
        "Tools and prompts carry their server's name, unique and short enough; other resources are found by asking.",
        (
            "downstream/fleet/test_names.py::test_every_name_fits_is_unique_and_reserved_ones_are_left_alone",
            "downstream/fleet/test_names.py::test_a_name_that_is_too_long_is_cut_and_marked_the_same_way_each_time",
            "tools/test_gateway.py::test_a_tool_answers_to_its_server_and_own_name_as_well",
            "tools/test_gateway.py::test_prompts_are_listed_got_and_completed_by_the_server",
            "tools/test_gateway.py::test_resources_are_listed_read_and_completed_by_the_server",
            "tools/test_gateway.py::test_a_uri_is_sent_to_no_server_that_does_not_offer_it",
        ),
    ),
    "G6": Requirement(
        "What servers and clients say to each other passes through, whichever revision each of them speaks.",
        (
            "tools/test_gateway_served.py::test_everything_passes_through_for_clients_and_servers_of_any_revision",
            "tools/test_gateway.py::test_a_result_is_passed_on_as_it_is",
            "tools/test_gateway.py::test_errors_keep_their_code_message_and_data",
            "tools/test_gateway.py::test_progress_and_log_messages_reach_the_client_in_order_before_the_answer",
            "tools/test_gateway.py::test_a_call_that_is_called_off_is_called_off_at_the_server",
            "tools/test_gateway.py::test_what_a_server_asks_is_answered_by_the_client_of_the_call",
            "tools/test_gateway_eras.py::test_a_client_of_the_newest_revision_is_asked_by_the_end_of_its_call",
            "tools/test_gateway.py::test_a_tool_that_comes_or_goes_is_one_change_of_the_list",
            "downstream/connection/test_leases.py::test_clients_at_a_time_are_each_asked_their_own",
        ),
    ),
    "G7": Requirement(
        "Tools are filtered and renamed, and one that changes behind one's back is held until it is approved.",
        (
            "downstream/fleet/test_fleet.py::test_rules_say_what_is_offered_and_under_which_name",
            "downstream/fleet/test_exposure.py::test_a_server_begins_with_its_preset_and_adds_its_own_rules",
            "downstream/fleet/test_fleet_processes.py::test_a_tool_that_changes_behind_ones_back_is_held_until_it_is_approved",
            "downstream/fleet/test_pins.py::test_a_tool_that_changes_while_somebody_looks_at_it_is_not_approved",
            "cli/test_servers.py::test_what_is_held_is_shown_with_what_changed_and_what_does_not_show",
        ),
    ),
    "G8": Requirement(
        "What servers print is in the log without secrets, lists are traced, and nothing is left behind.",
        (
            "downstream/transports/test_stderr.py::test_a_line_is_logged_with_the_command_and_kept",
            "downstream/transports/test_stderr.py::test_what_a_real_server_prints_is_heard_without_its_secrets",
            "downstream/test_session.py::test_lists_and_their_answers_are_traced",
            "downstream/connection/test_connection_processes.py::test_a_hundred_short_sessions_leave_nothing_behind",
            "downstream/connection/test_connection_processes.py::test_many_crashes_leave_nothing_behind",
            "downstream/transports/test_stdio_ending.py::test_what_will_not_end_is_killed_with_all_it_has_started",
            "downstream/transports/test_stdio_ending.py::"
            "test_when_we_are_killed_the_servers_are_gone_with_all_they_have_started",
        ),
    ),
    "G9": Requirement(
        "Errors of servers are mapped for applications: a code, a message, what to do, and whether to try again.",
        (
            "downstream/client/test_error_mapping.py::test_the_error_of_a_server_goes_by_its_code",
            "downstream/client/test_error_mapping.py::test_the_catalogue_holds_these_codes_and_no_other",
            "downstream/client/test_error_mapping.py::test_an_unknown_code_may_pass",
        ),
    ),
    "G10": Requirement(
        "Files and addresses go to the right tool of a converting server, with the time that their size needs.",
        (
            "downstream/client/test_conversion_routing.py::test_a_file_goes_by_its_extension",
            "downstream/client/test_conversion_routing.py::test_a_file_has_time_by_its_size",
            "downstream/client/test_conversion_routing.py::test_an_address_has_180_seconds",
            "downstream/client/test_conversion_routing.py::test_exports_have_60_seconds",
            "downstream/client/test_client_servers.py::test_docling_converts_and_exports_by_its_own_tools",
        ),
    ),
    "G11": Requirement(
        "Servers are changed while the desk runs; a broken file changes nothing and says why.",
        (
            "cli/test_servers.py::test_a_desk_that_runs_takes_a_server_and_survives_a_broken_file",
            "downstream/fleet/test_fleet.py::test_servers_are_added_and_removed_while_the_others_go_on",
            "downstream/fleet/test_fleet.py::test_a_server_set_otherwise_is_connected_anew_only_where_it_has_to_be",
            "downstream/files/test_server_files_watcher.py::test_a_broken_file_changes_nothing_and_says_so_once",
        ),
    ),
    "servers and permissions": Requirement(
        "A server, or a tool of it, is there only for the tenants and keys that it is for.",
        (
            "tools/test_gateway_permissions.py::test_a_server_of_some_tenants_is_there_for_them_alone",
            "tools/test_gateway_permissions.py::test_a_key_opens_the_servers_and_single_tools_that_it_names",
            "downstream/connection/test_connection.py::test_the_callers_credential_is_passed_on_only_where_that_is_set",
        ),
    ),
    "federated documentation": Requirement(
        "Other servers' documentation is in the same answer, which says what was left out.",
        (
            "tools/test_federation.py::test_all_sources_are_in_one_answer_each_hit_with_where_it_is_from",
            "tools/test_federation.py::test_a_source_that_is_too_slow_or_fails_is_told_and_costs_nothing_else",
            "tools/test_federation.py::test_what_a_source_said_stands_in_for_it_when_it_fails",
        ),
    ),
    "tool search": Requirement(
        "Two tools can stand for hundreds, which are found by what they do and called under the same policies.",
        (
            "tools/test_tool_search.py::test_only_the_two_tools_are_listed_and_the_others_can_still_be_called",
            "tools/test_tool_search.py::test_a_tool_is_found_by_what_it_does_with_what_it_takes_to_call_it",
            "tools/test_tool_search.py::test_a_reader_calls_through_it_only_what_reads",
        ),
    ),
    "slow clients": Requirement(
        "Slow and greedy clients lose their connection before they cost anything.",
        (
            "inbound/test_hostile.py::test_500_slow_clients_are_gone_in_time_while_calls_go_on",
            "inbound/test_hostile.py::test_100_half_sent_bodies_do_not_grow_memory_past_the_bound",
        ),
    ),
    "stopping": Requirement(
        "Told to stop, it finishes what is under way and ends with exit code 0.",
        (
            "inbound/test_sessions.py::test_a_stop_lets_calls_finish_and_ends_streams_at_once",
            "inbound/test_process.py::test_it_answers_and_ends_with_zero_when_told_to_stop",
        ),
    ),
}
