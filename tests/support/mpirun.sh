#!/bin/sh
# tests/support/mpirun.sh - run Open MPI's mpirun so that it shares nothing with other runs.
# usage: mpirun.sh MPIRUN [ARGUMENT...]; exits with the status of MPIRUN.
#
# All mpirun processes of a user keep their session directories in one folder, and an mpirun that ends removes
# the folder, even while another mpirun is about to use it.  Here each run has a folder of its own, which is removed
# afterwards.  Ranks are not bound to cores, because runs side by side would all be bound to the same cores.  Open MPI
# starts as root, or with more ranks than cores, only if the variables below allow it.
set -u
folder=$(mktemp -d "${TMPDIR:-/tmp}/hotbed-mpi-XXXXXX") || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 143' HUP INT TERM
mpirun=$1
shift
export OMPI_MCA_orte_tmpdir_base="$folder" PRTE_MCA_prte_tmpdir_base="$folder" # Open MPI 4 and 5
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$mpirun" --oversubscribe --bind-to none "$@"
