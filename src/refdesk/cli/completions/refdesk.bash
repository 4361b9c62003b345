# bash completion for refdesk
_refdesk() {
    local word="${COMP_WORDS[COMP_CWORD]}" line before
    # What stands before the cursor, cut at spaces alone: bash would cut at = and : as well.
    read -ra before <<< "${COMP_LINE:0:COMP_POINT}"
    [[ "${COMP_LINE:0:COMP_POINT}" == *[[:space:]] ]] && before+=("")
    local whole="${before[${#before[@]}-1]}"
    COMPREPLY=()
    while IFS=$'\t' read -r line _; do
        if [[ "$line" == ":files" ]]; then
            compopt -o filenames 2>/dev/null
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$word")
        elif [[ -n "$line" ]]; then
            # bash puts this in the place of its own last word, which may be less than ours.
            COMPREPLY+=("${line:$((${#whole} - ${#word}))}")
        fi
    done < <("${before[0]}" __complete "${before[@]:1}" 2>/dev/null)
}
complete -F _refdesk refdesk
