# shellcheck shell=bash
# moto, which stands in for Amazon SQS and DynamoDB, from PyPI in a virtual environment, with the clients of the tests' Python producers.
# It keeps everything in memory: a restart empties it. moto_server.py says what is changed in it.

MOTO_VERSION=5.2.5
PIKA_VERSION=1.4.4
CONFLUENT_KAFKA_VERSION=2.16.1

moto_ports() { port ONCEMILL_TEST_MOTO_PORT 15566; }

moto_install() {
	local venv="$DOWNLOADS/moto-$MOTO_VERSION"
	local whole="$venv/complete-pika-$PIKA_VERSION-confluent-kafka-$CONFLUENT_KAFKA_VERSION"
	[[ ! -e $whole ]] || return 0
	need_packages python3 python3 python3-venv
	# Debian's python3 may be there without the packages that make a virtual environment.
	python3 -c 'import ensurepip, venv' 2>/dev/null || need_packages /nonexistent/python3-venv python3-venv
	# A complete one is only added to: a server may be running from it.
	if [[ ! -e $venv/complete ]]; then
		rm -rf "$venv"
		python3 -m venv "$venv"
	fi
	"$venv/bin/pip" install --quiet --disable-pip-version-check "moto[server]==$MOTO_VERSION" \
		"pika==$PIKA_VERSION" "confluent-kafka==$CONFLUENT_KAFKA_VERSION" ||
		fail "pip could not install moto, pika and confluent-kafka (log: $LOG_DIR/$SERVICE.up.log)"
	touch "$venv/complete" "$whole"
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
	# Whose boto3, pika and confluent-kafka the tests of foreign producers use.
	if [[ -x $DOWNLOADS/moto-$MOTO_VERSION/bin/python ]]; then
		echo "export ONCEMILL_TEST_BOTO3='$DOWNLOADS/moto-$MOTO_VERSION/bin/python'"
	fi
}
