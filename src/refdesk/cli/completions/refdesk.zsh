#compdef refdesk
_refdesk() {
    local -a found
    local line files=0
    while IFS= read -r line; do
        if [[ "$line" == ":files" ]]; then
            files=1
        elif [[ -n "$line" ]]; then
            found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        fi
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( ${#found} )) && _describe 'refdesk' found
    (( files )) && _files
}
if [[ "${funcstack[1]}" == "_refdesk" ]]; then _refdesk "$@"; else compdef _refdesk refdesk; fi
