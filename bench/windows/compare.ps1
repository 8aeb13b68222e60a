<#
.SYNOPSIS
Compares wLLM on Windows with vLLM in WSL2 on the same GPU, vLLM's pinned memory off (its default there) and on.

.DESCRIPTION
Runs `wllm bench compare` in turns: wLLM on Windows, vLLM in WSL2, vLLM in WSL2 with pinned memory, and again in the next
round. Each run writes a JSON file; at the end `wllm bench report` prints them side by side. README.md beside this file
says what has to be installed.

.EXAMPLE
.\compare.ps1 -WslPython /home/me/vllm/bin/python

.EXAMPLE
.\compare.ps1 -WslPython /home/me/vllm/bin/python -Model Qwen/Qwen2.5-0.5B-Instruct -Rounds 3 -Out results
#>
[CmdletBinding()]
param(
    # Python of an environment in WSL2 that has vLLM and wLLM's packages, as an absolute path there.
    [Parameter(Mandatory = $true)]
    [string]$WslPython,

    # Sizes of the model; its weights are random. Not used with -Model.
    [string]$Shape = "qwen2.5-0.5b",

    # A model of the hub, which both sides download.
    [string]$Model = "",

    # Name of the WSL distribution; the default one if empty.
    [string]$Distribution = "",

    # How often each engine gets its turn.
    [ValidateRange(1, 20)]
    [int]$Rounds = 2,

    # Python on Windows that has wLLM.
    [string]$Python = "python",

    # Further flags of `wllm bench compare`, for both sides, such as "--batches", "1,8".
    [string[]]$Flags = @(),

    # Folder for the results.
    [string]$Out = "wllm-compare"
)

Set-StrictMode -Version 2
$ErrorActionPreference = "Stop"
# Without it the messages of wsl.exe itself are UTF-16.
$env:WSL_UTF8 = "1"
$env:PYTHONUTF8 = "1"
[Console]::OutputEncoding = [System.Text.Encoding]::UTF8

function Stop-WithReason([string]$Reason) {
    Write-Host "compare: $Reason" -ForegroundColor Red
    exit 1
}

function Invoke-Wsl([string[]]$Arguments) {
    $before = @()
    if ($Distribution -ne "") { $before = @("--distribution", $Distribution) }
    # --exec: no shell of the distribution reads the arguments.
    & wsl.exe @before --exec @Arguments
}

function Get-WslPath([string]$Path) {
    $before = @()
    if ($Distribution -ne "") { $before = @("--distribution", $Distribution) }
    # With slashes, which nothing on the way takes for an escape.
    $found = & wsl.exe @before --exec wslpath -a $Path.Replace("\", "/")
    if ($LASTEXITCODE -ne 0) { Stop-WithReason "WSL has no path for $Path; use -Out with a folder on a local drive" }
    return "$found".Trim()
}

if ($null -eq (Get-Command wsl.exe -ErrorAction SilentlyContinue)) {
    Stop-WithReason "there is no wsl.exe; install WSL2 (wsl --install) and vLLM in it, see README.md"
}
& $Python -c "import wllm.bench, torch; assert torch.cuda.is_available(), 'PyTorch sees no CUDA device'"
if ($LASTEXITCODE -ne 0) {
    Stop-WithReason "'$Python' has no wLLM with a CUDA build of PyTorch; activate its environment or give -Python"
}
Invoke-Wsl @($WslPython, "-c", "import vllm, wllm.bench")
if ($LASTEXITCODE -ne 0) {
    Stop-WithReason "'$WslPython' in WSL2 has not both vLLM and wLLM's packages; see README.md"
}

New-Item -ItemType Directory -Force -Path $Out | Out-Null
$folder = (Resolve-Path $Out).Path
$wslFolder = Get-WslPath $folder
$subject = @("--shape", $Shape)
if ($Model -ne "") { $subject = @($Model) }
$common = $subject + @("--device", "cuda", "--rounds", "1") + $Flags
$reports = @()

for ($round = 1; $round -le $Rounds; $round++) {
    $files = @()

    Write-Host "== round $round of ${Rounds}: wLLM on Windows"
    $file = "wllm-$round.json"
    & $Python -m wllm bench compare @common --engines wllm --json (Join-Path $folder $file)
    if ($LASTEXITCODE -ne 0) { Stop-WithReason "wLLM's run failed with exit code $LASTEXITCODE" }
    $files += Join-Path $folder $file

    foreach ($pinned in @("0", "1")) {
        $name = "vllm@wsl2"
        if ($pinned -eq "1") { $name = "vllm@wsl2-pinned" }
        Write-Host "== round $round of ${Rounds}: $name"
        $file = "vllm-pinned$pinned-$round.json"
        $run = @($WslPython, "-m", "wllm", "bench", "compare") + $common
        $run += @("--engines", $name, "--env", "${name}:VLLM_WSL2_ENABLE_PIN_MEMORY=$pinned")
        Invoke-Wsl ($run + @("--json", "$wslFolder/$file"))
        if ($LASTEXITCODE -ne 0) { Stop-WithReason "vLLM's run failed with exit code $LASTEXITCODE" }
        $files += Join-Path $folder $file
    }
    $reports += , $files
}

for ($round = 1; $round -le $Rounds; $round++) {
    Write-Host "`n== round $round of $Rounds"
    & $Python -m wllm bench report @($reports[$round - 1])
    if ($LASTEXITCODE -ne 0) { Stop-WithReason "the results of round $round could not be compared" }
}
Write-Host "`nresults: $folder"
