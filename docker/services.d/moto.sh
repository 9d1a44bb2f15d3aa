# shellcheck shell=bash
# moto, which stands in for Amazon SQS and DynamoDB, from PyPI in a virtual environment.
# It keeps everything in memory: a restart empties it. moto_server.py says what is changed in it.

MOTO_VERSION=5.2.5

moto_ports() { port ONCEMILL_TEST_MOTO_PORT 15566; }

moto_install() {
	local venv="$DOWNLOADS/moto-$MOTO_VERSION"
	[[ ! -e $venv/complete ]] || return 0
	need_packages python3 python3 python3-venv
	# Debian's python3 may be there without the packages that make a virtual environment.
	python3 -c 'import ensurepip, venv' 2>/dev/null || need_packages /nonexistent/python3-venv python3-venv
	rm -rf "$venv"
	python3 -m venv "$venv"
	"$venv/bin/pip" install --quiet --disable-pip-version-check "moto[server]==$MOTO_VERSION" ||
		fail "pip could not install moto (log: $LOG_DIR/$SERVICE.up.log)"
	touch "$venv/complete"
}

moto_start() {
	need_ports "$ONCEMILL_TEST_MOTO_PORT"
	launch moto "$DOWNLOADS/moto-$MOTO_VERSION/bin/python" "$HERE/services.d/moto_server.py" 127.0.0.1 "$ONCEMILL_TEST_MOTO_PORT"
	await moto 60 http_ok "$ONCEMILL_TEST_MOTO_PORT" /moto-api/data.json
}

moto_stop() {
	if [[ ${1:-} == --immediate ]]; then
		end moto KILL 20 KILL
	else
		end moto TERM 10 KILL
	fi
}

moto_address() { echo "http://127.0.0.1:$ONCEMILL_TEST_MOTO_PORT"; }

moto_env() {
	echo "export ONCEMILL_TEST_AWS='http://127.0.0.1:$ONCEMILL_TEST_MOTO_PORT'"
	# Whose boto3 the tests of foreign producers use.
	if [[ -x $DOWNLOADS/moto-$MOTO_VERSION/bin/python ]]; then
		echo "export ONCEMILL_TEST_BOTO3='$DOWNLOADS/moto-$MOTO_VERSION/bin/python'"
	fi
}
