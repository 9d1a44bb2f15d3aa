# shellcheck shell=bash
# What every service needs: ports, packages, processes, questions over TCP.
# Sourced by docker/services, which sets DATA_DIR, DOWNLOADS, RUN_DIR and LOG_DIR.

# fail REASON ends the step at hand; REASON is the one line that the user sees.
fail() {
	echo "$*" >"$RUN_DIR/$SERVICE.reason"
	exit 1
}

# port VARIABLE DEFAULT decides a port: what a running service has, else the
# environment, else what an earlier call saved, else any free one
# (ONCEMILL_TEST_PORTS=free), else DEFAULT.
port() {
	local variable=$1 default=$2 saved="$DATA_DIR/ports/$SERVICE.$1" value
	if [[ -s $saved ]] && { [[ -z ${!variable:-} ]] || alive "$SERVICE" >/dev/null; }; then
		value=$(<"$saved")
	elif [[ -n ${!variable:-} ]]; then
		value=${!variable}
	elif [[ ${ONCEMILL_TEST_PORTS:-} == free ]]; then
		value=$(free_port)
	else
		value=$default
	fi
	printf -v "$variable" %s "$value"
	export "${variable?}" # for docker/compose.yaml
	PORT_VARIABLES+=" $SERVICE.$variable"
	PORTS+=" $value "
}
PORT_VARIABLES=''
PORTS='' # that are decided

# save_ports SERVICE keeps its ports for later calls.
save_ports() {
	local entry variable
	for entry in $PORT_VARIABLES; do
		[[ $entry == "$1".* ]] || continue
		variable=${entry#*.}
		echo "${!variable}" >"$DATA_DIR/ports/$entry"
	done
}

# remove_ports SERVICE forgets them.
remove_ports() { rm -f "$DATA_DIR/ports/$1".*; }

# free_port prints a port below the ephemeral range on which nobody answers, and that no other server here is to have.
free_port() {
	local candidate
	while true; do
		candidate=$((20000 + RANDOM % 12000))
		[[ $PORTS != *" $candidate "* ]] || continue
		port_taken "$candidate" || break
	done
	echo "$candidate"
}

# port_taken PORT succeeds if somebody accepts connections there.
port_taken() {
	(exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# need_ports PORT... fails if a port belongs to a process that is not ours.
need_ports() {
	local number
	for number in "$@"; do
		if port_taken "$number"; then
			fail "port $number is taken by a process that this script did not start"
		fi
	done
}

# need_packages PROGRAM PACKAGE... installs the Debian packages if PROGRAM is missing.
need_packages() {
	local program=$1
	shift
	if [[ -x $program ]] || command -v "$program" >/dev/null; then
		return 0
	fi
	command -v apt-get >/dev/null || fail "$program is missing, and this machine has no apt-get"
	local root=()
	if [[ $EUID -ne 0 ]]; then
		sudo -n true 2>/dev/null || fail "$program is missing; as root: apt-get install --no-install-recommends $*"
		root=(sudo -n)
	fi
	if [[ ! -e $RUN_DIR/apt-updated.$LOCK_HOLDER ]]; then
		"${root[@]}" apt-get update -qq || fail "apt-get update failed (log: $LOG_DIR/$SERVICE.up.log)"
		touch "$RUN_DIR/apt-updated.$LOCK_HOLDER"
	fi
	"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" ||
		fail "apt-get install $* failed (log: $LOG_DIR/$SERVICE.up.log)"
}

# launch NAME COMMAND... starts a server that outlives this script, and records
# its pid together with its start time, so that a reused pid is recognised.
launch() {
	local name=$1 pid
	shift
	# 9 is the lock of this script: a server that inherited it would hold it for ever.
	setsid "$@" </dev/null >>"$LOG_DIR/$name.log" 2>&1 9>&- &
	pid=$!
	record "$name" "$pid"
}

# record NAME PID remembers a process as started by this script.
record() {
	echo "$2 $(start_time "$2")" >"$RUN_DIR/$1.pid"
	rm -f "$RUN_DIR/$1.stopped"
}

# start_time PID prints when the process began, in clock ticks since the boot;
# nothing if it has ended.
start_time() {
	local line
	line=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
	# The fields behind the program's name, which may hold blanks and brackets: 0 is
	# the state, 17 the number of threads, 19 the start. A zombie has ended, unless
	# other threads of it still die and hold its ports.
	local fields
	read -r -a fields <<<"${line##*) }"
	[[ ${fields[0]} != Z || ${fields[17]} -gt 1 ]] || return 0
	echo "${fields[19]}"
}

# alive NAME succeeds, and prints the pid, if the recorded process still is that process.
alive() {
	local pid started
	[[ -s $RUN_DIR/$1.pid ]] || return 1
	read -r pid started <"$RUN_DIR/$1.pid" || return 1
	[[ -n $started && $(start_time "$pid") == "$started" ]] || return 1
	echo "$pid"
}

# end NAME SIGNAL SECONDS LAST_SIGNAL stops the recorded process and waits until it has gone.
end() {
	local name=$1 signal=$2 seconds=$3 last=$4 pid
	if pid=$(alive "$name"); then
		kill -s "$signal" "$pid" 2>/dev/null || true
		if ! within "$seconds" gone "$name"; then
			kill -s "$last" "$pid" 2>/dev/null || true
			within 20 gone "$name" || fail "pid $pid does not end"
		fi
	fi
	rm -f "$RUN_DIR/$name.pid"
}

gone() { ! alive "$1" >/dev/null; }

# within SECONDS COMMAND... repeats the command until it succeeds or the time is over.
within() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@"; do
		((SECONDS < deadline)) || return 1
		sleep 0.1
	done
}

# await NAME SECONDS COMMAND... waits until a launched server answers; a server that ended fails at once.
await() {
	local name=$1 seconds=$2 deadline
	deadline=$((SECONDS + seconds))
	shift 2
	until "$@" >/dev/null 2>&1; do
		alive "$name" >/dev/null || fail "ended while starting: $(last_line "$LOG_DIR/$name.log")"
		((SECONDS < deadline)) || fail "did not answer within $seconds s (log: $LOG_DIR/$name.log)"
		sleep 0.1
	done
}

last_line() {
	[[ -s $1 ]] || return 0
	grep -v '^[[:space:]]*$' "$1" | tail -n 1 | cut -c 1-200
}

# ask PORT BYTES COUNT sends BYTES (printf escapes) and prints COUNT bytes of the answer in hex.
ask() {
	# shellcheck disable=SC2016
	timeout 3 bash -c '
		exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
		printf "$2" >&3
		head -c "$3" <&3 | od -An -v -tx1 | tr -d " \n"' ask "$@"
}

# http_ok PORT PATH [USER:PASSWORD] succeeds if the answer is 200.
http_ok() {
	local header='' line
	if [[ -n ${3:-} ]]; then
		header="Authorization: Basic $(printf %s "$3" | base64 -w0)"$'\r\n'
	fi
	line=$(
		# shellcheck disable=SC2016
		timeout 3 bash -c '
			exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
			printf "GET %s HTTP/1.0\r\nHost: 127.0.0.1\r\n%s\r\n" "$2" "$3" >&3
			head -n 1 <&3' http "$1" "$2" "$header"
	) || return 1
	[[ $line == *" 200 "* ]]
}
