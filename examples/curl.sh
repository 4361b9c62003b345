#!/usr/bin/env bash
# The same with nothing but curl. Start a desk first (scripts/serve), then:
#
#     examples/curl.sh
#
# REFDESK_URL names another desk, and REFDESK_KEY the key that it wants.
set -euo pipefail
url=${REFDESK_URL:-http://127.0.0.1:8001}

call() { # tool arguments
  curl -sS --fail-with-body "$url/api/tools/$1" -H 'Content-Type: application/json' \
    ${REFDESK_KEY:+-H "Authorization: Bearer $REFDESK_KEY"} -d "$2"
  echo
}

curl -sS --fail-with-body "$url/api/tools" ${REFDESK_KEY:+-H "Authorization: Bearer $REFDESK_KEY"}
echo
call search_documentation '{"query": "How do I require an API key?", "max_results": 1}'
call get_document '{"document_id": "refdesk/how-to/require-api-keys.md", "max_tokens": 300}'
