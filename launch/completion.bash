# Completion of slipstream and slipstream-run for bash. Commands, options and configuration keys are asked of the program
# itself (--help), so they are those of the version that is installed.
_slipstream() {
  local program=$1 cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command="" word i
  case "${program##*/}" in slipstream-run | run) program=slipstream ;; esac
  local commands
  commands=$("$program" --help 2>/dev/null | sed -n 's/^  \([a-z]\+\)  .*/\1/p')
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    case "$word" in
      -n | --build) ((++i)) ;; # of slipstream-run
      -*) ;;
      *) command=$word; break ;;
    esac
  done
  if [ -z "$command" ]; then
    mapfile -t COMPREPLY < <(compgen -W "$commands --help --version" -- "$cur")
    return
  fi
  case "$prev" in
    --set)
      local keys
      keys=$("$program" "$command" --help 2>/dev/null | sed -n 's/^  \([a-z_]\+\.[a-z0-9_]\+\) .*/\1=/p')
      mapfile -t COMPREPLY < <(compgen -W "$keys" -- "$cur")
      compopt -o nospace
      return
      ;;
    --device) mapfile -t COMPREPLY < <(compgen -W "auto cpu cuda" -- "$cur"); return ;;
    --resume) mapfile -t COMPREPLY < <(compgen -W "none auto" -- "$cur"; compgen -d -- "$cur"); return ;;
  esac
  if [[ $cur == -* ]]; then
    local options
    options=$("$program" "$command" --help 2>/dev/null | sed -n 's/^  \(-. \[ \)\?\(--[a-z-]\+\).*/\2/p')
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
  fi
}
complete -o filenames -F _slipstream slipstream slipstream-run
