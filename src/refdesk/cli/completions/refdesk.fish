# fish completion for refdesk
function __refdesk_complete
    set -l words (commandline -opc)
    for line in ($words[1] __complete $words[2..] (commandline -ct) 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c refdesk -f -a '(__refdesk_complete)'
