#!/bin/sh
# Build as the Dockerfile does, in an empty Debian, boot it with systemd, and check that the service installs, starts,
# survives a kill, restarts, and can be removed. `make test-image` runs this script as root. It needs mmdebstrap and
# systemd-container.
set -eu
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

echo "making an empty Debian"
mmdebstrap --quiet --variant=minbase --include=ca-certificates,dbus,passwd,python3,python3-venv,systemd,systemd-sysv \
  bookworm "$root"
mkdir "$root/src"
git ls-files -z | xargs -0 cp --parents -t "$root/src"

echo "running docker/build.sh in it"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" # this machine may be behind a proxy with its own certificate
if [ -f /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/"; fi
systemd-nspawn --quiet --register=no --keep-unit --pipe -D "$root" --chdir /src \
  --setenv=PIP_CERT=/etc/ssl/certs/ca-certificates.crt sh docker/build.sh

cat >"$root/check" <<'CHECK'
#!/bin/sh
set -eu
hermes=/opt/hermes-gateway/bin/hermes-gateway
$hermes service install
$hermes service status
first=$(systemctl show --property MainPID --value hermes-gateway)
kill -9 "$first"
for _ in $(seq 100); do
  second=$(systemctl show --property MainPID --value hermes-gateway)
  if [ "$second" != 0 ] && [ "$second" != "$first" ] && systemctl is-active hermes-gateway; then break; fi
  sleep 0.2
done
[ "$second" != "$first" ]
$hermes service install # again, which restarts it
[ "$(systemctl show --property MainPID --value hermes-gateway)" != "$second" ]
HERMES_HOME=/var/lib/hermes-gateway $hermes status
$hermes service logs | grep --max-count 1 daemon.started
$hermes service uninstall
! systemctl is-active hermes-gateway
test -f /var/lib/hermes-gateway/state.db
echo passed >/result
CHECK
cat >"$root/etc/systemd/system/check.service" <<'UNIT'
[Unit]
After=multi-user.target
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
ExecStart=/bin/sh /check
StandardOutput=file:/output
StandardError=file:/output
[Install]
WantedBy=graphical.target
UNIT
systemctl --quiet --root="$root" enable check.service

echo "booting it with systemd"
timeout 300 systemd-nspawn --quiet --register=no --keep-unit --boot -D "$root" >/dev/null 2>&1 </dev/null || true
cat "$root/output"
grep --quiet passed "$root/result"
